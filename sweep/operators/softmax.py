"""Softmax and its logarithm along one axis.

    softmax: y = exp(x) / sum of exp(x)      log_softmax: y = x - log(sum of exp(x))

https://onnx.ai/onnx/operators/onnx__Softmax.html, https://onnx.ai/onnx/operators/onnx__LogSoftmax.html
"""

import numpy as np

from sweep.operators import _values

PARAMETERS = {
    "shape": [[5], [1], [33], [3, 4], [2, 3, 5]],
    "axis": [-1, 1, 2],
    "logarithm": [False, True],
    "values": _values.VALUES + ["large", "huge"],
}
_LARGEST = {"large": 100.0, "huge": 1e30}


def valid(parameters):
    return parameters["axis"] <= len(parameters["shape"])


def inputs(parameters, rng):
    """`large` has numbers whose exponential is not finite in single precision, and `huge` differences that are not small either."""
    if parameters["values"] in _values.VALUES:
        return _values.inputs(parameters, rng, parameters["shape"]) / np.float32(4)
    drawn = _values.inputs({"values": "drawn"}, rng, parameters["shape"])
    return (drawn / np.float32(2) * np.float32(_LARGEST[parameters["values"]])).astype(np.float32)


def weights(_parameters, _rng):
    return {}


def reference(parameters, _weights, inputs):
    return _softmax(inputs, parameters["axis"], parameters["logarithm"])


def _softmax(inputs, axis, logarithm):
    moved = inputs - inputs.max(axis=axis, keepdims=True)
    powers = np.exp(moved)
    total = powers.sum(axis=axis, keepdims=True)
    return moved - np.log(total) if logarithm else powers / total


def magnitude(parameters, weights, inputs):
    """The exponential of a rounded difference is off by as much as the difference is, relative to itself. No result is wanted more exactly
    than single precision can tell from 1, or a logarithm from its largest term."""
    axis = parameters["axis"]
    moved = np.abs(inputs - inputs.max(axis=axis, keepdims=True))
    if parameters["logarithm"]:
        return 1 + moved
    return 1 + np.exp(-moved) * moved


def roundings(parameters):
    return parameters["shape"][parameters["axis"] if parameters["axis"] < 0 else parameters["axis"] - 1] + 16


def steps(_parameters):
    return 2


def span(parameters, _weights, _inputs):
    """In 8 bits; a logarithm below -16 is cut."""
    return (-16.0, 0.0) if parameters["logarithm"] else (0.0, 1.0)


def deviations(parameters, _weights, inputs, _observed):
    for axis in range(1, inputs.ndim):
        if axis != parameters["axis"] % inputs.ndim:
            yield "axis", "along axis {}".format(axis), lambda axis=axis: _softmax(inputs, axis, parameters["logarithm"])
    flat = inputs.reshape(len(inputs), -1)
    yield "axis", "over all axes at once", lambda: _softmax(flat, -1, parameters["logarithm"]).reshape(inputs.shape)
    other = not parameters["logarithm"]
    yield "activation", "{} logarithm".format("with the" if other else "without the"), lambda: _softmax(inputs, parameters["axis"], other)
    yield "overflow", "exponentials of the inputs as they are", lambda: _overflowing(inputs, parameters["axis"], parameters["logarithm"])


def _overflowing(inputs, axis, logarithm):
    with np.errstate(all="ignore"):
        powers = np.exp(inputs.astype(np.float32))
        total = powers.sum(axis=axis, keepdims=True)
        return (inputs - np.log(total) if logarithm else powers / total).astype(np.float64)
