"""Resizing images bilinearly, without smoothing them before they are made smaller: `sweep.operators._resizing` has the definition."""

import numpy as np

from sweep.operators import _resizing

PARAMETERS = _resizing.PARAMETERS
valid = _resizing.valid
inputs = _resizing.inputs


def weights(_parameters, _rng):
    return {}


def reference(parameters, _weights, inputs):
    return _resizing.bilinear(parameters, inputs, parameters["coordinates"])


def magnitude(parameters, weights, inputs):
    """A coordinate is off relative to the input's size, and what it mixes by as much."""
    widest = max(parameters["height"], parameters["width"])
    shape = reference(parameters, weights, inputs).shape
    return np.broadcast_to(widest * np.abs(inputs).max(axis=(1, 2), keepdims=True), shape)


def roundings(_parameters):
    """Of a coordinate along each axis, and of mixing four pixels."""
    return 16


def deviations(parameters, _weights, inputs, _observed):
    for coordinates in _resizing.COORDINATES:
        if coordinates != parameters["coordinates"]:
            yield ("resize_coordinates", "{} coordinates".format(coordinates),
                   lambda coordinates=coordinates: _resizing.bilinear(parameters, inputs, coordinates))
    yield "resize_coordinates", "the first row or column where the output has only one", lambda: _to_one(parameters, inputs)
    for coordinates in _resizing.COORDINATES:
        yield ("resize_mode", "the nearest pixel, {} coordinates".format(coordinates),
               lambda coordinates=coordinates: _resizing.nearest(parameters, inputs, coordinates, _resizing.RULE[coordinates]))
    yield "resize_antialias", "smoothed before it is made smaller", lambda: _resizing.mixed(inputs, [
        _smoothing(parameters[name], parameters["new_" + name]) for name in ("height", "width")
    ])


def _to_one(parameters, inputs):
    """The first row or column where there is only one to give (ONNX's pytorch_half_pixel)."""
    if parameters["new_height"] == 1:
        inputs = inputs[:, :1]
    if parameters["new_width"] == 1:
        inputs = inputs[:, :, :1]
    return _resizing.bilinear(dict(parameters, height=inputs.shape[1], width=inputs.shape[2]), inputs, parameters["coordinates"])


def _smoothing(size, new):
    """Triangles as wide as an output pixel, where the image gets smaller."""
    scale = max(size / float(new), 1.0)
    centres = (np.arange(new) + 0.5) * (size / float(new)) - 0.5
    found = np.maximum(0, 1 - np.abs(np.arange(size)[np.newaxis] - centres[:, np.newaxis]) / scale)
    return found / found.sum(axis=1, keepdims=True)
