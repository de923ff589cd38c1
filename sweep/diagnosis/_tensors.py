"""Where a deployed model parts from a source of which no neutral list is known: by the tensors of both.

They are aligned by order, shape, values and names (`_alignment.paired`). What a tensor may be off by grows with the roundings before it,
since no layer can be computed alone here: the first one that is further off is where they part, and what became of it says how.
"""

from collections import namedtuple

import numpy as np

from sweep import hypotheses, simulation
from sweep.diagnosis import _words as words
from sweep.diagnosis._alignment import AS_IT_IS, paired, view, views
from sweep.diagnosis._case import CHANGE_RATE_EPSILON, Explanation, simplest
from sweep.diagnosis._rounding import distance, largest, most_distance
from sweep.hypotheses import Deployed, Surroundings, View

ROUNDING_FACTOR = 32
"""How many half units in the last place of its largest value a tensor may be off by, for the root of the number of tensors before it."""
STEPS_FACTOR = 8  # likewise of half steps
MOST_CHANNELS = 4096  # that are compared with one another
OUTPUTS, AS_SERVED = "outputs", "as served"
Pair = namedtuple("Pair", "position tensor layout observed expected allowed off")
"""A tensor of the source by its position, and the deployed model's by its name; how far that is off, and may be."""

_UNIT = {"float32": 2.0 ** -24, "float16": 2.0 ** -11, "bfloat16": 2.0 ** -8}


def judge(source, right, tensors, outputs, how, switched=None, rounding=0.0):
    """As `sweep.diagnosis.judge`. `source` and `tensors` are lists of (name, array (N, ...)) in order of execution, of which nothing may be
    known; `right` and `outputs` (N, ...) are the source's and the deployed model's outputs as served, `how` the
    `sweep.simulation.Arithmetic` of its file, and `switched` as in `judge_deployed`. `rounding` is how far float32 takes the source's
    outputs, where that is known: a network that magnifies its rounding does so on the way too.

    A `layer` is a tensor of the source, its `kind` is `tensor`; the last row is of the outputs. There is no `residual` or `causal`. The
    verdict's `fault` is `optimization` where all tensors are right and the outputs aren't, `output_order` where those are right but for
    their order.
    """
    with np.errstate(all="ignore"):
        relative = rounding / largest(right) if largest(right) else 0.0
        aligned = _aligned(source, tensors, how, relative)
        allowed = _allowed(right, how, len(aligned) + 1, relative)
        served = Pair(len(source), AS_SERVED, AS_IT_IS, outputs, right, allowed, _distance(outputs, right, allowed, how))
        culprit = None if _is_right(served) else served if _in_another_order(served, how) else _first_wrong(aligned) or served
        if culprit is None:
            finding = None
        elif culprit is served:
            finding = _of_the_outputs(served, how, bool(aligned))
        else:
            finding = _finding(_named(source, culprit), culprit, source[:culprit.position], how)
        verdict = words.verdict([finding] if finding else [])
        if switched:
            verdict["switched"] = [name for name, values in switched.items() if _distance(values, right, allowed, how) <= allowed]
            if verdict["switched"]:
                verdict["evidence"] += "; the outputs are right with " + " or ".join(verdict["switched"])
        rows = [_row(_named(source, pair), pair, before.off if before else 0.0, pair is culprit)
                for before, pair in zip([None, *aligned], [*aligned, served])]
    return {"dtype": how.activations, "examples": len(outputs), "layers": rows, "verdict": verdict}


def _aligned(source, tensors, how, relative):
    """A Pair for each of the source's tensors that was found, in order."""
    found = []
    for depth, (position, place) in enumerate(sorted(paired(source, tensors).items()), 1):
        expected = np.asarray(source[position][1], np.float64)
        allowed = _allowed(expected, how, depth, relative)

        def pair(tensor, layout, position=position, expected=expected, allowed=allowed):
            observed = np.asarray(view(tensors[tensor][1], expected.shape[1:], layout), np.float64)
            return Pair(position, tensors[tensor][0], layout, observed, expected, allowed, _distance(observed, expected, allowed, how))

        chosen = pair(place.tensor, place.layout)
        if not _is_right(chosen):  # parallel branches have no order: it may be another that looks alike
            others = (pair(tensor, layout) for tensor, (_, array) in enumerate(tensors) for layout, _ in views(array, expected.shape[1:]))
            chosen = next(filter(_is_right, others), chosen)
        found.append(chosen)
    return found


def _is_right(pair):
    return pair.off <= pair.allowed


def _first_wrong(aligned):
    """The Pair to blame, or None: behind the last that is right, since what is off before that was fused or is another's, or leads into
    another branch; that one if there is nothing else."""
    wrong = [pair for pair in aligned if not _is_right(pair)]
    last = max([pair.position for pair in aligned if _is_right(pair)] or [-1])
    behind = [pair for pair in wrong if pair.position > last]
    return (behind or wrong or [None])[0]


def _named(source, pair):
    return source[pair.position][0] if pair.position < len(source) else OUTPUTS


def _row(name, pair, before, faulty):
    most = largest(pair.expected)
    return {
        "layer": name, "kind": "tensor", "tensor": pair.tensor, "layout": pair.layout, "shape": list(pair.observed.shape[1:]),
        "difference_max": words.number(pair.off), "relative": words.number(pair.off / most if most else np.inf),
        "ulps": words.number(pair.off / float(np.spacing(np.float32(most)))),
        "change_rate": words.number((pair.off - before) / (before + CHANGE_RATE_EPSILON) if np.isfinite(before) else np.inf),
        "residual": None, "causal": None, "tolerance": words.number(pair.allowed), "causal_tolerance": None, "out_of_range": False,
        "faulty": faulty,
    }


def _distance(observed, expected, allowed, how):
    """Infinite between arrays of different shapes."""
    if observed.shape != expected.shape:
        return np.inf
    observed, expected = (np.asarray(values, np.float64) for values in (observed, expected))
    return most_distance(observed, expected, allowed) if _integers(how) else distance(observed, expected)


def _in_another_order(served, how):
    """Whether the outputs are the right ones but for their order."""
    if served.observed.shape != served.expected.shape:
        return False
    ordered = [np.sort(values.reshape(len(values), -1).astype(np.float64), axis=1) for values in (served.observed, served.expected)]
    return _distance(*ordered, served.allowed, how) <= served.allowed


def _of_the_outputs(served, how, known):
    """The finding where outputs are wrong and no tensor is; `known` is whether there are tensors."""
    layer = {"name": OUTPUTS, "kind": "tensor"}
    told = "the outputs are {} from the source's, where rounding explains {:.2g}".format(words.amount(served.off), served.allowed)
    if served.observed.shape != served.expected.shape:
        return words.finding(layer, "shape", "{} values for an input, where the source gives {}".format(
            served.observed[0].size, served.expected[0].size))
    if _in_another_order(served, how):
        return words.finding(layer, "output_order", told + "; the same numbers in another order")
    if known:
        return words.finding(layer, "optimization", told + ", and every tensor that was found is right")
    as_numbers = served._replace(observed=np.asarray(served.observed, np.float64), expected=np.asarray(served.expected, np.float64))
    return _finding(OUTPUTS, as_numbers, [], how)


def _integers(how):
    return "int" in how.weights or "int" in how.activations


def _allowed(expected, how, depth, relative):
    units = [STEPS_FACTOR * 0.5 / (2 ** simulation.bits(name) - 1) if "int" in name else ROUNDING_FACTOR * _UNIT[name]
             for name in (how.weights, how.activations)]
    return max(max(units) * np.sqrt(depth), relative) * largest(expected)


def _finding(name, pair, before, how):
    layer, observed, expected, allowed = {"name": name, "kind": "tensor"}, pair.observed, pair.expected, pair.allowed
    told = "{} ({}) is {} from the source's, where rounding up to there explains {:.2g}".format(
        name, pair.tensor, words.amount(pair.off), allowed)
    if not np.isfinite(observed).all():
        return words.finding(layer, "overflow", "{}; {} of {} values are not finite".format(
            told, int((~np.isfinite(observed)).sum()), observed.size))
    found = []
    for fault, detail, values in _guesses(observed, expected, allowed, before, how, pair.position == 0):
        residual = distance(observed, values)
        if residual <= allowed:
            found.append(Explanation(fault, detail, residual, residual / allowed, name))
    found = simplest(found)
    if found:
        return words.finding(layer, found[0].fault, told + "; " + words.told(found[0]), found)
    return words.finding(layer, "unknown", "{}; {}".format(told, words.places(np.abs(observed - expected) > allowed)))


def _guesses(observed, expected, allowed, before, how, first):
    """(fault, detail, what it would give), the simpler first."""
    for name, values in reversed(before):
        if values.shape == expected.shape:
            yield "left_out", "{} in its place".format(name), np.asarray(values, np.float64)
    if first:
        inputs = {"kind": "input", "name": "input", "inputs": []}
        for hypothesis in hypotheses.of(inputs, {}, Surroundings(expected.shape[1:], None, False)):
            if hypothesis.fault in ("channel_order", "input_scale"):
                yield hypothesis.fault, hypothesis.detail, hypothesis.compute(View({}, [expected], observed, None))
    case = Deployed(None, {}, [expected], lambda values: values, True, expected, observed, allowed, _integers(how))
    for fault, _, forms in (hypotheses.OF_THE_RANGE if _integers(how) else ()) + hypotheses.OF_THE_OUTPUT:
        for detail, values in forms(case):
            yield "quantization_scale" if fault == "scale" and _integers(how) else fault, detail, values
    axes = tuple(range(expected.ndim - 1))
    yield "bias", "a constant added to each channel", expected + np.median(observed - expected, axis=axes)
    power = np.square(expected).sum(axis=axes)
    factors = np.where(power > 0, (observed * expected).sum(axis=axes) / np.where(power > 0, power, 1), 1)
    if factors.all():  # nothing at all is no multiple
        yield "scale", "a factor to each channel", expected * factors
    order = _order(observed, expected)
    if order is not None:
        yield "permuted_weights", "its channels in another order: {} of {} moved".format(
            int((order != np.arange(len(order))).sum()), len(order)), expected[..., order]


def _order(observed, expected):
    if expected.shape[-1] > MOST_CHANNELS:
        return None
    rows, columns = (array.reshape(-1, array.shape[-1]) for array in (observed, expected))
    squares = np.square(rows).sum(axis=0)[:, np.newaxis] + np.square(columns).sum(axis=0) - 2 * rows.T.dot(columns)
    nearest = squares.argmin(axis=1)
    return nearest if len(set(nearest)) == len(nearest) else None
