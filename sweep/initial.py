"""Initial weights and the order of the examples drawn by NumPy, for the recipe `identical`: the same numbers in every toolchain.

`numpy.random.RandomState` is the generator whose streams NumPy keeps as they are, from version to version. Each purpose has its own stream.
"""

import numpy as np

from sweep.layers import parameters

_WEIGHTS, _ORDER, _ULPS = 0, 1, 2
# Standard deviation of a standard normal distribution that is cut at two deviations: the draw is divided by it, so that what is left
# after the cut has the variance that was asked for.
TRUNCATED_DEVIATION = 0.87962566103423978


def weights(layers, seed):
    """Canonical weights, float32, of a freshly initialised network: kernels by each layer's `initializer`, the others by `constants`.

    Raises KeyError for an initializer that has no formula.
    """
    random = np.random.RandomState([seed, _WEIGHTS])
    initializers = {layer["name"]: layer["initializer"] for layer in layers if "initializer" in layer}
    drawn = constants(layers)
    for name, shape in parameters(layers).items():
        if name not in drawn:
            drawn[name] = _KERNEL[initializers[name.rpartition("/")[0]]](random, shape).astype(np.float32)
    return {name: drawn[name] for name in parameters(layers)}


def constants(layers):
    """The parameters that start at agreed constants, float32: gammas and variances 1, biases and means 0, but the forget gate's bias
    of an lstm 1 (Jozefowicz et al. 2015)."""
    kinds = {layer["name"]: layer["kind"] for layer in layers}
    found = {}
    for name, shape in parameters(layers).items():
        layer, _, parameter = name.rpartition("/")
        if not parameter.endswith("kernel"):
            found[name] = np.full(shape, 1 if parameter in ("gamma", "variance") else 0, np.float32)
            if kinds[layer] == "lstm":
                found[name][shape[0] // 4: shape[0] // 2] = 1
    return found


def moved_by_one_ulp(weights, seed):
    """The same weights, each that is not zero moved to a neighbouring number of its dtype, up or down by the toss of a coin."""
    random = np.random.RandomState([seed, _ULPS])
    moved = {}
    for name, array in weights.items():
        way = np.where(random.randint(0, 2, array.shape), np.inf, -np.inf).astype(array.dtype)
        moved[name] = np.where(array == 0, array, np.nextafter(array, way)).astype(array.dtype)
    return moved


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


_KERNEL = {"glorot_uniform": _glorot_uniform, "he_normal": _he_normal, "uniform": lambda random, shape: random.uniform(-0.05, 0.05, shape)}
