"""Where a deployed model parts from a source of which no neutral list is known: by the tensors of both.

They are aligned by order, shape, values and names (`_alignment.paired`). What a tensor may be off by grows with the roundings before it,
since no layer can be computed alone here: the first one that is further off is where they part, and what became of it says how.
"""

import numpy as np

from sweep import hypotheses, simulation
from sweep.diagnosis import _words as words
from sweep.diagnosis._alignment import paired, view
from sweep.diagnosis._case import CHANGE_RATE_EPSILON, Explanation, simplest
from sweep.diagnosis._rounding import distance, largest, most_distance
from sweep.hypotheses import Deployed, Surroundings, View

ROUNDING_FACTOR = 32
"""How many half units in the last place of its largest value a tensor may be off by, for the root of the number of tensors before it."""
STEPS_FACTOR = 8  # likewise of half steps
_UNIT = {"float32": 2.0 ** -24, "float16": 2.0 ** -11, "bfloat16": 2.0 ** -8}


def judge(source, tensors, outputs, how):
    """As `sweep.diagnosis.judge`. `source` and `tensors` are lists of (name, array (N, ...)) in order of execution, `outputs` the deployed
    model's, `how` the `sweep.simulation.Arithmetic` of its file. A `layer` is a tensor of the source, its `kind` is `tensor`; there is no
    `residual` or `causal`. Raises ValueError where the source has no tensors."""
    if not source:
        raise ValueError("no tensors of the source are known")
    tensors = list(tensors)
    if not tensors or not np.array_equal(tensors[-1][1], outputs):
        tensors.append(("output", outputs))
    with np.errstate(all="ignore"):
        pairs = paired(source, tensors)
        rows, findings, before = [], [], 0.0
        for depth, position in enumerate(sorted(pairs), 1):
            name, expected = source[position][0], np.asarray(source[position][1], np.float64)
            place = pairs[position]
            observed = np.asarray(view(tensors[place.tensor][1], expected.shape[1:], place.layout), np.float64)
            allowed = _allowed(expected, how, depth)
            off = most_distance(observed, expected, allowed) if _integers(how) else distance(observed, expected)
            most = largest(expected)
            rows.append({
                "layer": name, "kind": "tensor", "tensor": tensors[place.tensor][0], "layout": place.layout,
                "shape": list(observed.shape[1:]), "difference_max": words.number(off),
                "relative": words.number(off / most if most else np.inf),
                "ulps": words.number(off / float(np.spacing(np.float32(most)))),
                "change_rate": words.number((off - before) / (before + CHANGE_RATE_EPSILON) if np.isfinite(before) else np.inf),
                "residual": None, "causal": None, "tolerance": words.number(allowed), "causal_tolerance": None, "out_of_range": False,
                "faulty": not off <= allowed and not findings,  # behind the first it can't be told from what is handed on
            })
            before = off
            if rows[-1]["faulty"]:
                findings.append(_finding(rows[-1], observed, expected, allowed, source[:position], how, depth == 1))
    return {"dtype": how.activations, "examples": len(outputs), "layers": rows, "verdict": words.verdict(findings)}


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
    yield "scale", "a factor to each channel", expected * factors
    order = _order(observed, expected)
    if order is not None:
        yield "permuted_weights", "its channels in another order: {} of {} moved".format(
            int((order != np.arange(len(order))).sum()), len(order)), expected[..., order]


def _order(observed, expected):
    rows, columns = (array.reshape(-1, array.shape[-1]) for array in (observed, expected))
    squares = np.square(rows).sum(axis=0)[:, np.newaxis] + np.square(columns).sum(axis=0) - 2 * rows.T.dot(columns)
    nearest = squares.argmin(axis=1)
    return nearest if len(set(nearest)) == len(nearest) else None
