"""What a conversion is known to get wrong, beyond a framework's faults: numbers and ranges that went astray on the way to a file.

A row is (fault, kinds of layers, function). The function takes a Deployed and yields (detail, what the deployed model would give), the
simpler first.
"""

from collections import namedtuple

import numpy as np

from sweep import reference

Deployed = namedtuple("Deployed", "layer own inputs rest channelwise expected observed tolerance integers")
"""A layer in a deployed model: its parameters and inputs; `rest`, which makes the observed tensor of the layer's output (by the layers that
are fused behind it) and is `channelwise` where no channel tells on another; the right tensor and the observed one, what rounding explains
of their difference, and whether the file has integers."""

_PRODUCTS = ("conv2d", "conv1d", "dense")
_FEW = 4
_FOR_ORDERS = 16  # of a channel that a relu silences in fewer examples, none tells where it belongs
_MOST_CHANNELS = 512
_FACTORS = np.exp(np.linspace(-5, 5, 41))
_EPSILONS = np.exp(np.linspace(np.log(1e-8), np.log(10), 60))
_SLOPES = np.linspace(0, 1, 41)
_HALVINGS = 40
_GOLDEN = (np.sqrt(5) - 1) / 2
_LEAST_FACTOR = 1e-3
_COARSE = 4  # times the steps that the values' own range has
_LEVELS = 2 ** 16


def _without_bias(case):
    return reference.apply(case.layer, dict(case.own, bias=np.zeros_like(case.own["bias"])), *case.inputs)


def _permuted(case):
    """Output channels in another order, with their biases or without."""
    channels = len(case.own["bias"])
    if not case.channelwise or not 1 < channels <= _MOST_CHANNELS:
        return
    product, bias = _without_bias(case), case.own["bias"]
    for text, moved in (("the kernel's output channels in another order", False), ("the output channels in another order", True)):
        order = _order(case, product, bias, moved)
        if order is not None:
            values = product[..., order] + (bias[order] if moved else bias)
            yield "{}: {} of {} moved".format(text, int((order != np.arange(channels)).sum()), channels), case.rest(values)


def _order(case, product, bias, moved):
    """Which channel of the product is in each place, or None where it is a place's own everywhere or no permutation."""
    few, channels = product[:_FOR_ORDERS], len(bias)
    observed = case.observed[:_FOR_ORDERS]
    off = np.empty((channels, channels))
    for source in range(channels):
        given = np.broadcast_to(few[..., source:source + 1] + (bias[source] if moved else 0), few.shape)
        off[source] = np.abs(case.rest(given if moved else given + bias) - observed).reshape(-1, channels).sum(axis=0)
    order, free = np.full(channels, -1), np.ones(channels, bool)
    two = np.sort(off, axis=0)[:2]
    for place in np.argsort(two[0] - two[1]):  # the clearest first; what is always zero takes what is left
        distances = np.where(free, off[:, place], np.inf)
        order[place] = place if free[place] and distances[place] <= distances.min() else distances.argmin()
        free[order[place]] = False
    return None if (order == np.arange(channels)).all() else order


def _inner_order(case):
    """Input channels of the kernel in reverse, or moved round by one."""
    channels = case.own["kernel"].shape[-2]
    for text, order in (("in reverse", np.arange(channels)[::-1]), ("moved by one", np.roll(np.arange(channels), 1)),
                        ("moved back by one", np.roll(np.arange(channels), -1))):
        own = dict(case.own, kernel=case.own["kernel"][..., order, :])
        yield "the kernel's input channels {}".format(text), case.rest(reference.apply(case.layer, own, *case.inputs))


def _scaled_kernel(case):
    """The kernel, or with its bias the product, times a factor: one for all, or one for each output channel."""
    product, bias = _without_bias(case), case.own["bias"]
    for text, before, after in (("its kernel", product, bias), ("its kernel and bias", product + bias, 0)):

        def off(factors, before=before, after=after):
            return np.abs(case.rest(before[:_FEW] * factors + after) - case.observed[:_FEW])

        factor = _solved(lambda value, off=off: float(off(value).mean()), _FACTORS)
        yield "{} times {:.3g}".format(text, factor), case.rest(before * factor + after)
        if case.channelwise:
            factors = _solved_each(lambda values, off=off: off(values).reshape(-1, len(bias)).mean(axis=0), len(bias))
            changed = np.flatnonzero(np.abs(np.log(factors)) > 0.02)
            if len(changed):
                shown = ", ".join("{} by {:.3g}".format(at, factors[at]) for at in changed[:4])
                detail = "{} times a factor in {} of {} output channels ({})".format(text, len(changed), len(bias), shown)
                yield detail, case.rest(before * np.where(np.isin(np.arange(len(bias)), changed), factors, 1) + after)


def _scaled_output(case):
    """The observed tensor as a multiple of the right one, or with a constant added: another scale, another zero point."""
    expected, observed = case.expected.ravel(), case.observed.ravel()
    inside = (observed > observed.min()) & (observed < observed.max())  # what lies at an end may have been cut
    power = float(expected[inside].dot(expected[inside]))
    factor = float(expected[inside].dot(observed[inside])) / power if power > 0 else 0.0
    if abs(factor) > _LEAST_FACTOR:
        yield "its output times {:.3g}".format(factor), case.expected * factor
    if inside.any():
        shift = float(np.median(observed[inside] - expected[inside]))
        yield "{:.3g} added to its output".format(shift), np.clip(case.expected + shift, observed.min(), observed.max())
        yield "{:.3g} added to its output, and cut at 0".format(shift), np.maximum(case.expected + shift, 0)


def _calibration(case):
    """Steps far coarser than the values' range needs, or a range that cuts them."""
    observed, expected = case.observed, case.expected
    low, high = observed.min(), observed.max()
    levels = np.unique(observed)
    if len(levels) == 1 and expected.min() != expected.max() and _in_one_step(expected, float(levels[0])):
        yield "all of its values in one step, {:.3g}".format(levels[0]), observed
    if 1 < len(levels) <= _LEVELS:
        step, most = float(np.diff(levels).min()), np.abs(expected).max()
        span = expected.max() - expected.min()
        if step > _COARSE * span / 255 and np.abs(observed).max() <= 1.25 * most + step:  # else it is the values that are larger
            # Whatever is wrong besides can't be seen in such steps.
            yield "steps of {:.3g}, a 255th of {:.3g}, where the values span {:.3g}".format(step, 255 * step, span), observed
    cut = (expected < low - case.tolerance) | (expected > high + case.tolerance)
    if cut.any() and low < high:
        text = "{:.2g} % of the values cut to a range of [{:.3g}, {:.3g}]".format(100 * cut.mean(), low, high)
        yield text, np.clip(expected, low, high)


def _in_one_step(values, level):
    """Whether steps of some size take all values to the one level: to 0 large enough ones do, and to another the level's own."""
    return level == 0 or bool((np.abs(values - level) <= abs(level) / 2).all())


def _layouts(case):
    expected = case.expected
    if expected.ndim == 4 and expected.shape[1] == expected.shape[2]:
        yield "height and width swapped", expected.transpose(0, 2, 1, 3)
        yield "turned round", expected[:, ::-1, ::-1]
    if expected.ndim == 4:
        yield "rows upside down", expected[:, ::-1]
        yield "columns mirrored", expected[:, :, ::-1]
        count, height, width, channels = expected.shape
        yield "channels last read as channels first", np.ascontiguousarray(expected).reshape(
            count, channels, height, width).transpose(0, 2, 3, 1)
        yield "channels first read as channels last", np.ascontiguousarray(expected.transpose(0, 3, 1, 2)).reshape(expected.shape)


def _epsilon(case):
    own, values = case.own, case.inputs[0]

    def scaled(epsilon, few=None):
        normed = (values[:few] - own["mean"]) / np.sqrt(own["variance"] + epsilon) * own["gamma"] + own["beta"]
        return case.rest(normed)

    epsilon = _solved(lambda value: float(np.abs(scaled(value, _FEW) - case.observed[:_FEW]).mean()), _EPSILONS)
    yield "epsilon {:.3g} in place of {:g}".format(epsilon, case.layer["epsilon"]), scaled(epsilon)


def _slope(case):
    values = case.inputs[0]

    def leaky(slope, few=None):
        return case.rest(np.where(values[:few] > 0, values[:few], values[:few] * slope))

    slope = _solved(lambda value: float(np.abs(leaky(value, _FEW) - case.observed[:_FEW]).mean()), _SLOPES)
    yield "leaky relu of slope {:.3g}".format(slope), leaky(slope)


def _solved(off, grid):
    """The number for which `off` is least: the best of the grid, then golden sections between its neighbours."""
    grid = np.asarray(grid, np.float64)
    best = int(np.argmin([off(value) for value in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    for _ in range(_HALVINGS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if off(left) < off(right):
            high = right
        else:
            low = left
    return (low + high) / 2


def _solved_each(off, count):
    """The same for `count` factors at once, where `off` gives a distance for each."""
    rows = np.array([off(np.full(count, value)) for value in _FACTORS])
    best = rows.argmin(axis=0)
    low, high = _FACTORS[np.maximum(best - 1, 0)], _FACTORS[np.minimum(best + 1, len(_FACTORS) - 1)]
    for _ in range(_HALVINGS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        nearer = off(left) < off(right)
        low, high = np.where(nearer, low, left), np.where(nearer, right, high)
    found = (low + high) / 2
    return np.where(rows.max(axis=0) > rows.min(axis=0), found, 1.0)  # a channel that tells nothing keeps its own


DEPLOYED = (
    ("permuted_weights", _PRODUCTS, _permuted),
    ("permuted_weights", _PRODUCTS, _inner_order),
    ("epsilon", ("batch_norm",), _epsilon),
    ("activation", ("relu",), _slope),
    ("scale", _PRODUCTS, _scaled_kernel),
)
OF_THE_RANGE = (("calibration", None, _calibration),)
"""Rows that explain an integer tensor by its range alone, before anything else is asked."""
OF_THE_OUTPUT = (
    ("scale", None, _scaled_output),
    ("layout", None, _layouts),
)
"""Rows that look at the observed tensor alone, whatever layer it comes from."""
