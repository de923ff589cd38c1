"""Mean over windows; whether padding counts is a parameter, and what lies beyond the padding never does.

    y[n, r, c, k] = (sum over i, j of x[n, r s + i - p, c s' + j - p', k]) / (how many of these count)

https://onnx.ai/onnx/operators/onnx__AveragePool.html, https://docs.pytorch.org/docs/stable/generated/torch.nn.AvgPool2d.html
"""

import numpy as np

from sweep.operators import _pools, _values, _windows

PARAMETERS = dict(_pools.PARAMETERS, count_include_pad=[False, True], values=_values.VALUES)
valid = _pools.valid
inputs = _pools.inputs


def weights(_parameters, _rng):
    return {}


def reference(parameters, _weights, inputs):
    both = _windows.axes(parameters)
    return _pools.mean(inputs, both, [_windows.count(axis, parameters["ceil_mode"]) for axis in both], parameters["count_include_pad"])


def magnitude(parameters, weights, inputs):
    return reference(parameters, weights, np.abs(inputs))


def roundings(parameters):
    """Of the sum and the quotient."""
    return parameters["window_height"] * parameters["window_width"] + 1


def deviations(parameters, _weights, inputs, observed):
    both, counts, counted = _windows.axes(parameters), observed.shape[1:3], parameters["count_include_pad"]

    def mean(axes=both, counted=counted):
        return _pools.mean(inputs, axes, counts, counted)

    yield from _pools.edges(parameters, mean)
    area = parameters["window_height"] * parameters["window_width"]
    yield "pool_edge_count", "its padding {}counted".format("not " if counted else ""), lambda: mean(counted=not counted)
    yield "pool_edge_count", "always divided by the window's size", lambda: _pools.total(inputs, both, counts) / area
    for fault, detail, axes in _windows.elsewhere(parameters, both):
        yield fault, detail, lambda axes=axes: mean(axes)
    yield "pool_kind", "sums in place of means", lambda: _pools.total(inputs, both, counts)
    yield "pool_kind", "the maximum in place of the mean", lambda: _windows.covered(inputs, both, counts, -np.inf).max(axis=(3, 4))
