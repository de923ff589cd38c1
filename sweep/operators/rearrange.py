"""Operators that move values and change none: transposing, reshaping, joining and slicing.

    transpose     the axes but the batch in another order          concatenate   the two halves along an axis, swapped
    reshape       to other axes, the last one fastest               slice         every second value along an axis, from the second on

https://onnx.ai/onnx/operators/onnx__Transpose.html and its neighbours
"""

import numpy as np

from sweep.operators import _values

PARAMETERS = {
    "function": ["transpose", "reshape", "concatenate", "slice"],
    "shape": [[2, 3], [4, 6], [2, 3, 4], [4, 1, 6], [2, 4, 3, 2]],
    "axis": [1, 2, 3, 4],
    "values": _values.VALUES,
}


def valid(parameters):
    shape, axis = parameters["shape"], parameters["axis"]
    if axis > len(shape):
        return False
    return parameters["function"] in ("transpose", "reshape") or shape[axis - 1] > 1


def inputs(parameters, rng):
    return _values.inputs(parameters, rng, parameters["shape"])


def weights(_parameters, _rng):
    return {}


def order(parameters):
    """Of all axes, for `transpose`: the axis goes first after the batch, the others follow turned round."""
    others = [axis for axis in range(len(parameters["shape"]), 0, -1) if axis != parameters["axis"]]
    return [0, parameters["axis"]] + others


def new_shape(parameters):
    """Without the batch, for `reshape`: the axis and all after it joined, and another axis of 1 in front."""
    shape, axis = parameters["shape"], parameters["axis"]
    return [1] + shape[: axis - 1] + [int(np.prod(shape[axis - 1:]))]


def halves(parameters):
    """Where the axis is cut, for `concatenate`."""
    return parameters["shape"][parameters["axis"] - 1] // 2


def reference(parameters, _weights, inputs):
    function, axis = parameters["function"], parameters["axis"]
    if function == "transpose":
        return inputs.transpose(order(parameters))
    if function == "reshape":
        return inputs.reshape([len(inputs)] + new_shape(parameters))
    if function == "concatenate":
        return np.roll(inputs, -halves(parameters), axis)
    return inputs[(slice(None),) * axis + (slice(1, None, 2),)]


def magnitude(parameters, weights, inputs):
    return np.abs(reference(parameters, weights, inputs))


def roundings(_parameters):
    return 0


def deviations(parameters, _weights, inputs, observed):
    yield "layout", "the numbers as they lie", lambda: inputs.reshape(observed.shape) if inputs.size == observed.size else None
    if parameters["function"] == "reshape":
        for at in range(1, inputs.ndim - 1):
            yield ("flatten_order", "axes {} and {} swapped before".format(at, at + 1),
                   lambda at=at: inputs.swapaxes(at, at + 1).reshape(observed.shape) if inputs.size == observed.size else None)
    if parameters["function"] == "slice":
        before = (slice(None),) * parameters["axis"]
        yield "slice", "from the first on", lambda: inputs[before + (slice(0, None, 2),)]
        yield "slice", "without a stride", lambda: inputs[before + (slice(1, 1 + observed.shape[parameters["axis"]]),)]
