"""What pools share: their parameters, their means, and the rule for the window at the edge."""

import numpy as np

from sweep.operators import _values, _windows

PARAMETERS = {
    "height": [4, 5, 7, 8, 13],
    "width": [4, 5, 6, 9, 12],
    "channels": [1, 2, 3, 8],
    "window_height": [1, 2, 3, 4],
    "window_width": [1, 2, 3, 4],
    "stride_height": [1, 2, 3, 4],
    "stride_width": [1, 2, 3, 4],
    "padding": ["same", "valid", [[1, 1], [1, 1]], [[0, 1], [1, 0]], [[1, 2], [0, 1]]],
    "ceil_mode": [False, True],
}


def valid(parameters):
    """Every window reads some of the input, explicit padding is smaller than it, and the edge rule is for explicit padding: the other two
    kinds state how many windows there are."""
    if parameters["ceil_mode"] and parameters["padding"] in ("valid", "same"):
        return False
    both = _windows.axes(parameters)
    if parameters["padding"] != "same" and any(max(axis.before, axis.after) >= axis.window for axis in both):
        return False
    counts = [_windows.count(axis, parameters["ceil_mode"]) for axis in both]
    if min(counts) < 1:
        return False
    ones = np.ones((1, parameters["height"], parameters["width"], 1))
    return bool(_windows.covered(ones, both, counts, 0).max(axis=(3, 4)).min() == 1)


def inputs(parameters, rng):
    """`negative` values tell padding by zeros; infinite ones of both signs stand at every seventh place."""
    shape = (parameters["height"], parameters["width"], parameters["channels"])
    values = parameters["values"]
    if values in _values.VALUES:
        return _values.inputs(parameters, rng, shape)
    drawn = _values.inputs({"values": "drawn"}, rng, shape)
    if values == "negative":
        return -np.abs(drawn) - 1
    flat = drawn.reshape(-1)
    places = np.arange(rng.randint(7), flat.size, 7)
    flat[places] = np.resize([np.inf, -np.inf], places.size)
    return drawn


def mean(inputs, both, counts, count_padding):
    """Means over windows; of each, what is within the input counts, or within the padding too."""
    counted = np.ones((1,) + inputs.shape[1:3] + (1,), inputs.dtype)
    if count_padding:
        sides = [(0, 0)] + [(max(axis.before, 0), max(axis.after, 0)) for axis in both] + [(0, 0)]
        counted = np.pad(counted, sides, mode="constant", constant_values=1)
        padded = [axis._replace(size=axis.size + axis.before + axis.after, before=0, after=0) for axis in both]
        both_counted = padded
    else:
        both_counted = both
    with np.errstate(all="ignore"):  # windows that lie elsewhere may hold nothing that counts
        return total(inputs, both, counts) / total(counted, both_counted, counts)


def total(inputs, both, counts):
    return _windows.covered(inputs, both, counts, 0).sum(axis=(3, 4))


def edges(parameters, compute):
    """A wrong number of windows, which shows in the shape alone."""
    yield "pool_remainder", "the remainder at its edge {}".format("dropped" if parameters["ceil_mode"] else "pooled too"), compute
