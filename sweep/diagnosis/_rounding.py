"""How far rounding may take a layer's output from the right one."""

import numpy as np

from sweep import initial, reference

ROUNDING_FACTOR = 8
"""How many times what rounding does to NumPy's own float32 arithmetic may be rounding in another's: it sums in other orders."""
FLOOR_ULPS = 16  # of a layer's largest value: what fast convolutions and functions such as tanh may be off by
CUT_EXAMPLES, CUT_VALUES = 1 / 3.0, 0.005
"""Up to this share of the examples may have values beyond an integer tensor's range, and up to this share of its values: a calibration sees
fewer inputs than a test, and some leave out the largest on purpose."""
TERMS_FACTOR = 8
"""How many half units in the last place of the sum of its terms' absolute values a sum may be off by, whatever the order."""


def tolerance(layer, own, inputs, expected, dtype):
    """What rounding may do to a layer's output: ROUNDING_FACTOR times what float32 arithmetic does, or moving each weight by one ulp (so
    that ill-conditioned layers get what they need, whatever the order of their operations), and at least FLOOR_ULPS. A sum of many terms
    gets TERMS_FACTOR of its terms too: NumPy's own order is among the better ones."""
    single = {name: array.astype(dtype) for name, array in own.items()}
    rounded = reference.apply(layer, single, *[cast(values, dtype) for values in inputs])
    effects = [largest(rounded - expected)]
    if own:
        moved = {name: array.astype(np.float64) for name, array in initial.moved_by_one_ulp(single, 0).items()}
        effects.append(largest(reference.apply(layer, moved, *inputs) - expected))
    allowed = max(ROUNDING_FACTOR * max(effects), floor(expected, dtype))
    if layer["kind"] in ("conv2d", "conv1d", "dense"):
        terms = reference.apply(layer, {name: np.abs(array) for name, array in own.items()}, *map(np.abs, inputs))
        allowed = max(allowed, TERMS_FACTOR * largest(terms) * float(np.finfo(dtype).eps) / 2)
    return allowed


def floor(values, dtype):
    """FLOOR_ULPS of the largest value."""
    return FLOOR_ULPS * max(float(np.spacing(np.asarray(largest(values), dtype))), float(np.finfo(dtype).tiny))


def cast(values, dtype):
    """Numbers in a dtype; token ids as they are."""
    return values if values.dtype.kind in "iu" else values.astype(dtype)


def largest(values):
    """The largest absolute value, 0 of none."""
    return float(np.abs(values).max()) if values.size else 0.0


def distance(observed, expected):
    """The largest absolute difference; infinite where two arrays can't be compared."""
    if observed.shape != expected.shape:
        return np.inf
    most = largest(observed - expected)
    return most if np.isfinite(most) else np.inf


def most_distance(observed, expected, tolerance):
    """How far an integer tensor's values are off in nine of ten examples, and in all but one at least. What should lie beyond its range by
    more than the tolerance should be at its end, unless that is most of them."""
    if observed.shape != expected.shape or len(observed) < 2 or not np.isfinite(observed).all():
        return distance(observed, expected)
    low, high = _range(observed)
    if _beyond(low, high, expected, tolerance).mean() <= 0.5:
        expected = np.clip(expected, low, high)
    off = np.sort(np.abs(observed - expected).reshape(len(observed), -1).max(axis=1))
    return float(off[-1 - max(1, len(off) // 10)])


def cut_share(observed, expected, exact, tolerance):
    """The share of an integer tensor's values that should lie beyond its range for the inputs that it was computed from and for the right
    ones too (of wrong inputs the range can't know); 0 where it is those of few examples."""
    if not observed.shape == expected.shape == exact.shape or not np.isfinite(observed).all():
        return 0.0
    low, high = _range(observed)
    cut = _beyond(low, high, expected, tolerance) & _beyond(low, high, exact, tolerance)
    return float(cut.mean()) if cut.reshape(len(cut), -1).any(axis=1).mean() > CUT_EXAMPLES else 0.0


def _range(observed):
    """Where an integer tensor's values may have been cut. At 0 a relu may have cut them, which is no matter of ranges."""
    low = observed.min()
    return low if low < 0 else -np.inf, observed.max()


def _beyond(low, high, expected, tolerance):
    return (expected < low - tolerance) | (expected > high + tolerance)
