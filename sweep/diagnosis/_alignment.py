"""Which tensors of a deployed model are which layers' outputs.

`views` are the ways in which a tensor can hold a layer's output. `paired` aligns two lists of tensors by dynamic programming, each in its
order of execution, where nothing else is known.
"""

from collections import namedtuple
from difflib import SequenceMatcher

import numpy as np

Place = namedtuple("Place", "tensor layout")
"""A tensor's position in the list, and one of the LAYOUTS."""

AS_IT_IS, CHANNELS_FIRST, BIAS_LATER = LAYOUTS = ("", "channels first", "its bias in the next layer's")
_NAME_SHARE = 0.5  # what equal names count, where equal values count 1
LEAST_SCORE = 0.3


def view(array, shape, layout, flattened=None):
    """The tensor (N, ...) as a layer's output of `shape`, channels last; `flattened` is the shape that the layer flattens, if it does."""
    if layout == AS_IT_IS:
        return array.reshape((len(array),) + tuple(shape))
    inner = tuple(shape) if flattened is None else tuple(flattened)
    moved = np.moveaxis(array.reshape((len(array), inner[-1]) + inner[:-1]), 1, -1)
    return moved.reshape((len(array),) + tuple(shape))


def views(array, shape, flattened=None):
    """(layout, array) for each layout in which the tensor can hold an output of `shape`: as it is, or channels first; axes of size 1 count
    for nothing."""
    inner = tuple(shape) if flattened is None else tuple(flattened)
    found = []
    if wide(array.shape[1:]) == wide(shape):
        found.append((AS_IT_IS, view(array, shape, AS_IT_IS)))
    if len(wide(inner)) > 1 and inner[-1] > 1:
        first = wide(shape) if flattened is not None else wide((inner[-1],) + inner[:-1])
        if wide(array.shape[1:]) == first:
            found.append((CHANNELS_FIRST, view(array, shape, CHANNELS_FIRST, flattened)))
    return found


def wide(shape):
    return [extent for extent in shape if extent != 1]


def paired(expected, observed, flattened=None):
    """{position in `expected`: Place in `observed`} of two lists of (name, array (N, ...)), each in its order of execution.

    The pairs that keep both orders and have the largest sum of scores: how far the values agree, 0 to 1, and _NAME_SHARE of how far the
    names do. Only tensors whose shapes are equal up to layout are paired. `flattened`: by name in `expected`, the shape it flattens.
    """
    rows, columns = len(expected), len(observed)
    best, choice = np.zeros((rows + 1, columns + 1)), {}
    for row in range(rows - 1, -1, -1):
        for column in range(columns - 1, -1, -1):
            score, layout = _score(expected[row], observed[column], (flattened or {}).get(expected[row][0]))
            options = [best[row + 1, column], best[row, column + 1], score + best[row + 1, column + 1] if score > LEAST_SCORE else -1]
            best[row, column] = max(options)
            choice[row, column] = (int(np.argmax(options)), layout)
    found, row, column = {}, 0, 0
    while row < rows and column < columns:
        step, layout = choice[row, column]
        if step == 2:
            found[row] = Place(column, layout)
        row, column = row + (step != 1), column + (step != 0)
    return found


def _score(expected, observed, flattened):
    (name, values), (other, array) = expected, observed
    agreed = [(agreement(seen, values), layout) for layout, seen in views(array, values.shape[1:], flattened)]
    if not agreed:
        return -1.0, AS_IT_IS
    score, layout = max(agreed, key=lambda pair: pair[0])
    return score + _NAME_SHARE * SequenceMatcher(None, name.lower(), other.lower(), autojunk=False).ratio(), layout


def agreement(observed, values):
    """1 for equal arrays, 0 for what is no nearer than nothing at all."""
    power = float(np.square(values, dtype=np.float64).sum())
    with np.errstate(all="ignore"):
        off = float(np.square(observed - values, dtype=np.float64).sum())
    return max(0.0, 1 - np.sqrt(off / power)) if power > 0 and np.isfinite(off) else 0.0
