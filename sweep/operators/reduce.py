"""Sums, means, extremes and products over axes.

https://onnx.ai/onnx/operators/onnx__ReduceSum.html, https://www.tensorflow.org/api_docs/python/tf/math/reduce_sum
"""

import numpy as np

from sweep.operators import _values

PARAMETERS = {
    "function": ["sum", "mean", "max", "min", "prod"],
    "shape": [[6], [4, 5], [3, 4, 5], [7, 1, 3], [2, 3, 2, 4]],
    "axes": [[1], [-1], [2], [1, 2], [2, 3], [1, 3], [1, 2, 3]],
    "keepdims": [False, True],
    "values": _values.VALUES + ["negative"],
}
_FUNCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


def valid(parameters):
    return max(parameters["axes"]) <= len(parameters["shape"])


def inputs(parameters, rng):
    """For products, numbers around 1."""
    shape = parameters["shape"]
    if parameters["function"] == "prod":
        drawn = _values.inputs({"values": "drawn"}, rng, shape)
        return (np.where(drawn < 0, -1, 1) * (1 + np.abs(drawn) / 8)).astype(np.float32)
    if parameters["values"] == "negative":
        return -np.abs(_values.inputs({"values": "drawn"}, rng, shape)) - 1
    return _values.inputs(parameters, rng, shape)


def weights(_parameters, _rng):
    return {}


def reference(parameters, _weights, inputs):
    return _reduced(inputs, parameters["function"], parameters["axes"], parameters["keepdims"])


def _reduced(inputs, function, axes, keepdims):
    return _FUNCTIONS[function](inputs, axis=tuple(axes), keepdims=keepdims)


def magnitude(parameters, weights, inputs):
    return np.abs(reference(parameters, weights, np.abs(inputs)))


def roundings(parameters):
    """0 for extremes: they are one of the inputs."""
    count = 1
    for axis in parameters["axes"]:
        count *= parameters["shape"][axis if axis < 0 else axis - 1]
    return 0 if parameters["function"] in ("max", "min") else count + 1


def deviations(parameters, _weights, inputs, observed):
    function, axes, keepdims = parameters["function"], parameters["axes"], parameters["keepdims"]
    for other in PARAMETERS["axes"]:
        if other != axes and max(other) <= len(parameters["shape"]):
            yield "axis", "over axes {}".format(other), lambda other=other: _reduced(inputs, function, other, keepdims)
    for other in PARAMETERS["function"]:
        if other != function:
            yield "reduction", "{} in place of {}".format(other, function), lambda other=other: _reduced(inputs, other, axes, keepdims)
    yield "keepdims", "with the axes {}".format("gone" if keepdims else "kept"), lambda: _reduced(inputs, function, axes, not keepdims)
    for bound in ("max", "min"):
        if function == bound:
            yield ("reduction", "{} that starts from 0".format(bound),
                   lambda bound=bound: getattr(np, bound + "imum")(0, _reduced(inputs, function, axes, keepdims)))
