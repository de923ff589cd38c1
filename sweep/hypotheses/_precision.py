"""Fewer bits than the layer's dtype has: of its weights, of its inputs, of all its arithmetic."""

import numpy as np

from sweep import reference
from sweep.hypotheses._view import Coarse, after, altered


def _bfloat16(values):
    """Rounded to 8 bits, to nearest, ties to even."""
    return _cut(values, 16)


def _tensor_float(values):
    """Rounded to the 11 bits that matrix units take of a float32."""
    return _cut(values, 13)


def _cut(values, bits):
    whole = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    odd = (whole >> np.uint64(bits)) & np.uint64(1)
    rounded = (whole + np.uint64((1 << (bits - 1)) - 1) + odd) >> np.uint64(bits) << np.uint64(bits)
    return rounded.astype(np.uint32).view(np.float32).astype(values.dtype)


def _float16(values):
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(values.dtype)


def _eight_bits(values):
    """Symmetric, one scale for the whole array."""
    largest = np.abs(values).max()
    return np.rint(values / largest * 127) * (largest / 127) if largest else values


_ROUNDINGS = (("float16", _float16), ("bfloat16", _bfloat16), ("tensor float", _tensor_float))


def _precisions(layer, _own, _around):
    for name, rounded in _ROUNDINGS + (("8 bits", _eight_bits),):
        yield "weights rounded to " + name, altered(layer, lambda own, rounded=rounded: {key: rounded(own[key]) for key in own})
    for name, rounded in _ROUNDINGS:
        def inputs_too(view, rounded=rounded):
            values = [array if array.dtype.kind == "i" else rounded(array) for array in view.inputs]
            return reference.apply(layer, {key: rounded(view.own[key]) for key in view.own}, *values)

        def throughout(view, rounded=rounded, inputs_too=inputs_too):
            """Every observed number is one of that precision, and none is further off than such arithmetic goes."""
            if not np.array_equal(rounded(view.observed), view.observed):
                return None
            coarse = rounded(inputs_too(view))
            return Coarse(coarse, 8 * np.abs(coarse - reference.apply(layer, view.own, *view.inputs)).max())

        yield "inputs and weights rounded to " + name, inputs_too
        yield "outputs rounded to " + name, after(layer, rounded)
        yield "computed in " + name, throughout


PRECISION = (("reduced_precision", None, _precisions),)
