"""N-bit linear quantization of weights: equal steps between the least and the largest value.

coremltools 2 has it as the mode `linear` of `quantize_weights`: a range for every output channel (for a vector as a whole), levels rounded
down, and 16 bits meaning float16. That is `axis` at the output channels with rounding `down`, for 8 bits and fewer.
"""

from collections import namedtuple

import numpy as np

Linear = namedtuple("Linear", "levels scale least")
"""`levels`, unsigned integers shaped like the values; `scale` and `least`, float32 (), or (channels,) along an axis.
A value is least + scale x its level."""

ROUNDINGS = ("nearest", "down")


def quantize(values, bits, axis=None, rounding="nearest"):
    """A Linear of float values at 2^bits levels, with a range for each index along `axis`, or one for all of them.

    Levels are uint8 up to 8 bits, else uint16. Where a range is nothing but one value, its levels and its scale are 0. Raises ValueError
    for values that are not finite, and where there are none.
    """
    if not values.size or not np.isfinite(values).all():
        raise ValueError("weights are not finite" if values.size else "there are no weights")
    others = None if axis is None else tuple(i for i in range(values.ndim) if i != axis % values.ndim)
    values = values.astype(np.float64)
    least, largest = values.min(axis=others, keepdims=True), values.max(axis=others, keepdims=True)
    most = 2 ** bits - 1
    shares = np.divide(values - least, largest - least, out=np.zeros_like(values), where=largest > least)
    levels = (np.rint if rounding == "nearest" else np.floor)(shares * most)
    scale = ((largest - least) / most).astype(np.float32)
    shape = () if axis is None else (-1,)
    return Linear(levels.astype(np.uint8 if bits <= 8 else np.uint16), scale.reshape(shape), least.astype(np.float32).reshape(shape))
