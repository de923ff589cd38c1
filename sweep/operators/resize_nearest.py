"""Resizing images by the nearest pixel: `sweep.operators._resizing` says which that is."""

import numpy as np

from sweep.operators import _resizing

PARAMETERS = _resizing.PARAMETERS
valid = _resizing.valid
inputs = _resizing.inputs
_UNCERTAIN = 8 * 2.0 ** -24
"""Relative: how far single precision may be off in a coordinate, after a quotient, a product and a sum or two."""


def weights(_parameters, _rng):
    return {}


def reference(parameters, _weights, inputs):
    coordinates = parameters["coordinates"]
    return _resizing.nearest(parameters, inputs, coordinates, _resizing.RULE[coordinates])


def magnitude(parameters, weights, inputs):
    return np.abs(reference(parameters, weights, inputs))


def roundings(_parameters):
    """Values are moved."""
    return 0


def slack(parameters, weights, inputs):
    """Where a coordinate is so near the border of two pixels that its rounding decides, either is right."""
    right, coordinates = reference(parameters, weights, inputs), parameters["coordinates"]
    others = [_resizing.nearest(parameters, inputs, coordinates, _resizing.RULE[coordinates], moved) for moved in (_UNCERTAIN, -_UNCERTAIN)]
    return np.maximum(*(np.abs(other - right) for other in others))


def deviations(parameters, _weights, inputs, _observed):
    own = parameters["coordinates"]
    for coordinates in sorted(_resizing.COORDINATES, key=lambda other: other != own):
        for rule in ("floor", "round"):
            fault, detail = ("resize_rounding", "the nearest pixel by {}") if coordinates == own else (
                "resize_coordinates", coordinates + " coordinates, the nearest pixel by {}")
            yield (fault, detail.format(rule),
                   lambda coordinates=coordinates, rule=rule: _resizing.nearest(parameters, inputs, coordinates, rule))
    for coordinates in _resizing.COORDINATES:
        yield ("resize_mode", "bilinear, {} coordinates".format(coordinates),
               lambda coordinates=coordinates: _resizing.bilinear(parameters, inputs, coordinates))
