"""Where a deployed model parts from a source of which no neutral list is known: by the tensors of both.

They are aligned by order, shape, values and names (`_alignment.paired`). What a tensor may be off by grows with the roundings before it,
since no layer can be computed alone here: the first one that is further off is where they part, and what became of it says how.
"""

import numpy as np

from sweep import hypotheses, simulation
from sweep.diagnosis import _words as words
from sweep.diagnosis._alignment import AS_IT_IS, paired, view
from sweep.diagnosis._case import CHANGE_RATE_EPSILON, Explanation, simplest
from sweep.diagnosis._rounding import distance, largest, most_distance
from sweep.hypotheses import Deployed, Surroundings, View

ROUNDING_FACTOR = 32
"""How many half units in the last place of its largest value a tensor may be off by, for the root of the number of tensors before it."""
STEPS_FACTOR = 8  # likewise of half steps
MOST_CHANNELS = 4096  # that are compared with one another
OUTPUTS, AS_SERVED = "outputs", "as served"
_UNIT = {"float32": 2.0 ** -24, "float16": 2.0 ** -11, "bfloat16": 2.0 ** -8}


def judge(source, right, tensors, outputs, how, switched=None):
    """As `sweep.diagnosis.judge`. `source` and `tensors` are lists of (name, array (N, ...)) in order of execution, of which nothing may be
    known; `right` and `outputs` (N, ...) are the source's and the deployed model's outputs as served, `how` the
    `sweep.simulation.Arithmetic` of its file, and `switched` as in `judge_deployed`.

    A `layer` is a tensor of the source, its `kind` is `tensor`; the last row is of the outputs. There is no `residual` or `causal`. The
    verdict's `fault` is `optimization` where all tensors are right and the outputs aren't, `output_order` where those are right but for
    their order.
    """
    with np.errstate(all="ignore"):
        pairs = paired(source, tensors)
        rows, findings, before = [], [], 0.0
        for depth, position in enumerate(sorted(pairs), 1):
            name, expected = source[position][0], np.asarray(source[position][1], np.float64)
            place = pairs[position]
            observed = np.asarray(view(tensors[place.tensor][1], expected.shape[1:], place.layout), np.float64)
            allowed = _allowed(expected, how, depth)
            off = _distance(observed, expected, allowed, how)
            rows.append(_row(name, tensors[place.tensor][0], place.layout, observed, expected, off, before, allowed, bool(findings)))
            before = off
            if rows[-1]["faulty"]:
                findings.append(_finding(rows[-1], observed, expected, allowed, source[:position], how, depth == 1))
        allowed = _allowed(right, how, len(rows) + 1)
        off = _distance(outputs, right, allowed, how)
        served = _row(OUTPUTS, AS_SERVED, AS_IT_IS, outputs, right, off, before, allowed, bool(findings))
        if served["faulty"]:
            findings.append(_of_the_outputs(served, outputs, right, allowed, how, bool(rows)))
        verdict = words.verdict(findings)
        if switched:
            verdict["switched"] = [name for name, values in switched.items() if _distance(values, right, allowed, how) <= allowed]
            if verdict["switched"]:
                verdict["evidence"] += "; the outputs are right with " + " or ".join(verdict["switched"])
    return {"dtype": how.activations, "examples": len(outputs), "layers": [*rows, served], "verdict": verdict}


def _row(name, tensor, layout, observed, expected, off, before, allowed, behind):
    """`behind` the first fault what is wrong can't be told from what is handed on."""
    most = largest(expected)
    return {
        "layer": name, "kind": "tensor", "tensor": tensor, "layout": layout, "shape": list(observed.shape[1:]),
        "difference_max": words.number(off), "relative": words.number(off / most if most else np.inf),
        "ulps": words.number(off / float(np.spacing(np.float32(most)))),
        "change_rate": words.number((off - before) / (before + CHANGE_RATE_EPSILON) if np.isfinite(before) else np.inf),
        "residual": None, "causal": None, "tolerance": words.number(allowed), "causal_tolerance": None, "out_of_range": False,
        "faulty": not off <= allowed and not behind,
    }


def _distance(observed, expected, allowed, how):
    """Infinite between arrays of different shapes."""
    if observed.shape != expected.shape:
        return np.inf
    observed, expected = (np.asarray(values, np.float64) for values in (observed, expected))
    return most_distance(observed, expected, allowed) if _integers(how) else distance(observed, expected)


def _of_the_outputs(row, outputs, right, allowed, how, known):
    """The finding where outputs are wrong and no tensor is; `known` is whether there are tensors."""
    layer = {"name": OUTPUTS, "kind": "tensor"}
    told = "the outputs are {} from the source's, where rounding explains {:.2g}".format(words.amount(row["difference_max"]), allowed)
    if outputs.shape != right.shape:
        return words.finding(layer, "shape", "{} values for an input, where the source gives {}".format(outputs[0].size, right[0].size))
    in_order = [np.sort(values.reshape(len(values), -1).astype(np.float64), axis=1) for values in (outputs, right)]
    if _distance(*in_order, allowed, how) <= allowed:
        return words.finding(layer, "output_order", told + "; the same numbers in another order")
    if known:
        return words.finding(layer, "optimization", told + ", and every tensor that was found is right")
    return _finding(row, np.asarray(outputs, np.float64), np.asarray(right, np.float64), allowed, [], how, False)


def _integers(how):
    return "int" in how.weights or "int" in how.activations


def _allowed(expected, how, depth):
    units = [STEPS_FACTOR * 0.5 / (2 ** simulation.bits(name) - 1) if "int" in name else ROUNDING_FACTOR * _UNIT[name]
             for name in (how.weights, how.activations)]
    return max(units) * np.sqrt(depth) * largest(expected)


def _finding(row, observed, expected, allowed, before, how, first):
    layer = {"name": row["layer"], "kind": "tensor"}
    told = "{} ({}) is {} from the source's, where rounding up to there explains {:.2g}".format(
        row["layer"], row["tensor"], words.amount(row["difference_max"]), allowed)
    if not np.isfinite(observed).all():
        return words.finding(layer, "overflow", "{}; {} of {} values are not finite".format(
            told, int((~np.isfinite(observed)).sum()), observed.size))
    found = []
    for fault, detail, values in _guesses(observed, expected, allowed, before, how, first):
        residual = distance(observed, values)
        if residual <= allowed:
            found.append(Explanation(fault, detail, residual, residual / allowed, row["layer"]))
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
