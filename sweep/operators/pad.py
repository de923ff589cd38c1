"""Padding of images: by a constant, by mirrored values without or with the edge itself, or by the edge.

https://onnx.ai/onnx/operators/onnx__Pad.html, https://numpy.org/doc/stable/reference/generated/numpy.pad.html
"""

import numpy as np

from sweep.operators import _values

PARAMETERS = {
    "height": [3, 4, 5],
    "width": [3, 4, 6],
    "channels": [1, 2, 3],
    "padding": [[[1, 1], [1, 1]], [[0, 1], [2, 0]], [[2, 0], [0, 1]], [[2, 1], [1, 2]], [[0, 0], [0, 2]]],
    "mode": ["constant", "reflect", "symmetric", "edge"],
    "constant": [0.0, 1.5, -2.0],
    "values": _values.VALUES,
}


def valid(parameters):
    return parameters["mode"] == "constant" or parameters["constant"] == 0


def inputs(parameters, rng):
    return _values.inputs(parameters, rng, (parameters["height"], parameters["width"], parameters["channels"]))


def weights(_parameters, _rng):
    return {}


def reference(parameters, _weights, inputs):
    return _padded(inputs, parameters["padding"], parameters["mode"], parameters["constant"])


def _padded(inputs, sides, mode, constant):
    options = {"constant_values": constant} if mode == "constant" else {}
    return np.pad(inputs, [(0, 0)] + [tuple(side) for side in sides] + [(0, 0)], mode=mode, **options)


def magnitude(parameters, weights, inputs):
    return np.abs(reference(parameters, weights, inputs))


def roundings(_parameters):
    """Values are moved."""
    return 0


def deviations(parameters, _weights, inputs, _observed):
    sides, mode, constant = parameters["padding"], parameters["mode"], parameters["constant"]
    yield "padding_side", "before and after swapped", lambda: _padded(inputs, [side[::-1] for side in sides], mode, constant)
    yield "padding_swapped", "the padding of the other axis", lambda: _padded(inputs, sides[::-1], mode, constant)
    for other in PARAMETERS["mode"]:
        if other != mode:
            yield "padding_values", "{} in place of {}".format(other, mode), lambda other=other: _padded(inputs, sides, other, 0.0)
    yield "padding_values", "0 for the constant", lambda: _padded(inputs, sides, "constant", 0.0)
