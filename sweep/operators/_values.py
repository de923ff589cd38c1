"""The numbers that operators are probed with."""

import numpy as np

from sweep.operators._probe import BATCH

VALUES = ["integers", "drawn"]
"""How weights and inputs are chosen: small whole numbers, whose sums can be checked by hand, or numbers drawn from [-2, 2].

Drawn numbers are multiples of 2^-8: 10 bits, so that a cast to half precision leaves them as they are, and products of two of them are
exact in single precision.
"""
_STEPS = 512
_COUNTED = 97  # a prime, so that counting does not repeat with any shape


def inputs(parameters, rng, shape):
    """float32 (BATCH,) + shape."""
    return array(parameters["values"], rng, (BATCH,) + tuple(shape))


def array(values, rng, shape):
    """Numbers that differ from their neighbours and, where there is room, from all others."""
    if values == "integers":
        return (np.arange(int(np.prod(shape))) % _COUNTED + 1).astype(np.float32).reshape(shape)
    return (rng.randint(-_STEPS, _STEPS + 1, shape) / np.float32(256)).astype(np.float32)


def kernel(values, rng, shape):
    """As `array`, small where it is whole numbers, and of both signs."""
    if values == "integers":
        counted = np.arange(int(np.prod(shape))) % 11 + 1
        return (counted * np.where(counted % 3 == 0, -1, 1)).astype(np.float32).reshape(shape)
    return array(values, rng, shape)
