"""Maximum over windows; padding never is the maximum.

    y[n, r, c, k] = max over i, j of x[n, r s + i d - p, c s' + j d' - p', k]

https://onnx.ai/onnx/operators/onnx__MaxPool.html, https://docs.pytorch.org/docs/stable/generated/torch.nn.MaxPool2d.html
"""

import numpy as np

from sweep.operators import _pools, _values, _windows

PARAMETERS = dict(_pools.PARAMETERS, dilation_height=[1, 2], dilation_width=[1, 2], values=_values.VALUES + ["negative", "infinite"])
valid = _pools.valid
inputs = _pools.inputs


def weights(_parameters, _rng):
    return {}


def reference(parameters, _weights, inputs):
    both = _windows.axes(parameters)
    return _maximum(inputs, both, [_windows.count(axis, parameters["ceil_mode"]) for axis in both])


def _maximum(inputs, both, counts, fill=-np.inf):
    return _windows.covered(inputs, both, counts, fill).max(axis=(3, 4))


def magnitude(parameters, weights, inputs):
    return np.abs(reference(parameters, weights, inputs))


def roundings(_parameters):
    """The output is one of the inputs."""
    return 0


def deviations(parameters, _weights, inputs, observed):
    both, counts = _windows.axes(parameters), observed.shape[1:3]
    yield from _pools.edges(parameters, lambda: _maximum(inputs, both, counts))
    for fault, detail, axes in _windows.elsewhere(parameters, both):
        yield fault, detail, lambda axes=axes: _maximum(inputs, axes, counts)
    yield "pool_edge_count", "its padding counted as zeros", lambda: _maximum(inputs, both, counts, 0)
    yield "pool_kind", "the mean in place of the maximum", lambda: _pools.mean(inputs, both, counts, False)
    lowest = float(np.finfo(np.float32).min)
    yield "not_finite", "no value below the least finite one", lambda: np.maximum(_maximum(inputs, both, counts), lowest)
