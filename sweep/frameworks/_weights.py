"""Canonical weights are checked once, here, so that every framework refuses the same mistakes in the same words."""

import numpy as np

from sweep.layers import parameters


def checked(layers, weights):
    """The weights as arrays by `layer/parameter`, in the order of the list.

    Raises ValueError that names the parameter where one is missing, unknown or of another shape.
    """
    expected = parameters(layers)
    unknown = sorted(set(weights) - set(expected))
    if unknown:
        raise ValueError("{} is no parameter of this network".format(unknown[0]))
    found = {}
    for name, shape in expected.items():
        if name not in weights:
            raise ValueError("{} is missing from the weights".format(name))
        array = np.asarray(weights[name])
        if array.shape != tuple(shape):
            raise ValueError("{} has shape {}, expected {}".format(name, array.shape, tuple(shape)))
        found[name] = array
    return found
