"""Resizing images: which input coordinate an output pixel reads, and which pixels it mixes.

An output coordinate q of Q reads the input at x of X:

    half_pixel      x = (q + 1/2) X / Q - 1/2       cut to the input
    align_corners   x = q (X - 1) / (Q - 1)         0 where Q is 1
    asymmetric      x = q X / Q

https://onnx.ai/onnx/operators/onnx__Resize.html, https://www.tensorflow.org/api_docs/python/tf/compat/v1/image/resize_bilinear,
https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html
"""

from fractions import Fraction

import numpy as np

from sweep.operators import _values

COORDINATES = ("half_pixel", "align_corners", "asymmetric")
PARAMETERS = {
    "height": [2, 3, 4, 5, 7],
    "width": [2, 3, 4, 6, 9],
    "channels": [1, 2, 3, 8],
    "new_height": [1, 2, 3, 4, 5, 6, 8, 10, 14],
    "new_width": [1, 2, 3, 4, 6, 7, 9, 12, 18],
    "coordinates": list(COORDINATES),
    "values": _values.VALUES,
}
RULE = {"half_pixel": "floor", "align_corners": "round", "asymmetric": "floor"}
"""How the nearest pixel is taken: `floor` is the one that x lies in, of pixels that begin at their coordinate, or half a pixel before it
for half_pixel; `round` is the one that x is nearest to, of two the upper one."""


def valid(_parameters):
    return True


def inputs(parameters, rng):
    return _values.inputs(parameters, rng, (parameters["height"], parameters["width"], parameters["channels"]))


def nearest(parameters, inputs, coordinates, rule, moved=0.0):
    """Every output pixel is an input pixel; `moved` is added to every coordinate, relative to its size."""

    def pixel(size, new, place):
        at = coordinate(size, new, coordinates, place)
        if coordinates == "half_pixel" and rule == "floor":
            at += Fraction(1, 2)
        at = at * (1 + Fraction(moved)) + (Fraction(1, 2) if rule == "round" else 0)
        return min(max(int(np.floor(at)), 0), size - 1)

    rows = [pixel(parameters["height"], parameters["new_height"], place) for place in range(parameters["new_height"])]
    columns = [pixel(parameters["width"], parameters["new_width"], place) for place in range(parameters["new_width"])]
    return inputs[:, rows][:, :, columns]


def bilinear(parameters, inputs, coordinates):
    """Every output pixel mixes the two input pixels around it along each axis, by their distance."""
    return mixed(inputs, [
        _neighbours(parameters[name], parameters["new_" + name], coordinates) for name in ("height", "width")
    ])


def mixed(inputs, shares):
    """`shares` are (new, size) by axis: how much of each input pixel is in each output pixel."""
    rows, columns = (share.astype(inputs.dtype) for share in shares)
    return np.einsum("ph,qw,nhwc->npqc", rows, columns, inputs)


def _neighbours(size, new, coordinates):
    found = np.zeros((new, size))
    for place in range(new):
        at = min(max(coordinate(size, new, coordinates, place), 0), size - 1)
        low = int(at)
        found[place, low] += 1 - float(at - low)
        found[place, min(low + 1, size - 1)] += float(at - low)
    return found


def coordinate(size, new, coordinates, place):
    """x, as a Fraction."""
    if coordinates == "half_pixel":
        return Fraction(2 * place + 1, 2) * Fraction(size, new) - Fraction(1, 2)
    if coordinates == "align_corners":
        return Fraction(place * (size - 1), new - 1) if new > 1 else Fraction(0)
    return Fraction(place * size, new)
