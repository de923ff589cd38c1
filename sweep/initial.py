"""Initial weights and the order of the examples drawn by NumPy, for the recipe `identical`: the same numbers in every toolchain.

`numpy.random.RandomState` is the generator whose streams NumPy keeps as they are, from version to version. Each purpose has its own stream.
"""

import numpy as np

from sweep.layers import parameters

_WEIGHTS, _ORDER = 0, 1
# Standard deviation of a standard normal distribution that is cut at two deviations: the draw is divided by it, so that what is left
# after the cut has the variance that was asked for.
TRUNCATED_DEVIATION = 0.87962566103423978


def weights(layers, seed):
    """Canonical weights, float32, of a freshly initialised network: kernels by each layer's `initializer`, biases and means 0,
    gammas and variances 1. Raises KeyError for an initializer that has no formula."""
    random = np.random.RandomState([seed, _WEIGHTS])
    initializers = {layer["name"]: layer["initializer"] for layer in layers if "initializer" in layer}
    drawn = {}
    for name, shape in parameters(layers).items():
        layer, _, parameter = name.rpartition("/")
        if parameter == "kernel":
            drawn[name] = _KERNEL[initializers[layer]](random, shape).astype(np.float32)
        else:
            drawn[name] = np.full(shape, 1 if parameter in ("gamma", "variance") else 0, np.float32)
    return drawn


def permutations(n, epochs, seed):
    """The order of n examples in every epoch: int32 (epochs, n)."""
    random = np.random.RandomState([seed, _ORDER])
    return np.array([random.permutation(n) for _ in range(epochs)], np.int32).reshape(epochs, n)


def fans(shape):
    """How many inputs and outputs one weight of a canonical kernel takes part in."""
    receptive = int(np.prod(shape[:-2]))
    return receptive * shape[-2], receptive * shape[-1]


def _glorot_uniform(random, shape):
    limit = np.sqrt(6.0 / sum(fans(shape)))
    return random.uniform(-limit, limit, shape)


def _he_normal(random, shape):
    deviation = np.sqrt(2.0 / fans(shape)[0]) / TRUNCATED_DEVIATION
    drawn = random.standard_normal(int(np.prod(shape)))
    outside = np.flatnonzero(np.abs(drawn) > 2)
    while len(outside):
        drawn[outside] = random.standard_normal(len(outside))
        outside = outside[np.abs(drawn[outside]) > 2]
    return deviation * drawn.reshape(shape)


_KERNEL = {"glorot_uniform": _glorot_uniform, "he_normal": _he_normal}
