"""Where a deployed model parts from the network that it was converted from, and by which fault.

Only tensors are there to go by, under names and in layouts of the file's own. They are aligned with the neutral list (`_alignment`), and
each layer, or the layers that were fused to one, is judged by what it gives for the deployed model's own inputs of it (`_units`): a layer
that only hands on what it got wrong isn't to blame. `sweep.hypotheses` explains those that are wrong.
"""

import numpy as np

from sweep import reference
from sweep.diagnosis import _words as words
from sweep.diagnosis._alignment import views
from sweep.diagnosis._case import CHANGE_RATE_EPSILON, simplest
from sweep.diagnosis._computed import EXACT, Network
from sweep.diagnosis._explanations import explanations
from sweep.diagnosis._rounding import CUT_VALUES, cut_share, distance, largest
from sweep.diagnosis._units import traced, units, whole_unit

_MOST_MEMBERS = 30  # layers that are searched for what explains a whole network's outputs


def judge(layers, weights, inputs, tensors, outputs, how, switched=None):
    """As `sweep.diagnosis.judge`, of a deployed model's tensors: (name, array (N, ...)) in order of execution, with as little optimisation
    as its runtime can, and its `outputs` as it is served.

    `how` is the `sweep.simulation.Arithmetic` of its file; `switched` has the outputs with one option of its runtime changed, by a
    text that says which. A row has one layer, or several that were fused, joined by `+`; also `tensor`, `layout` and, of integers,
    `clipped`, the share of values that its range cuts. There is no `causal`. The verdict has `switched` too: with which of them the
    outputs are right. Its `fault` is `optimization` where the tensors are right and the outputs aren't.
    """
    tensors = list(tensors)
    if not tensors or not views(tensors[-1][1], outputs.shape[1:]):
        tensors.append(("output", outputs))
    if layers[0]["kind"] != "tokens":
        tensors.insert(0, ("input", inputs))
    with np.errstate(all="ignore"):
        exact = reference.layer_outputs(layers, weights, inputs)
        network = Network(layers, weights, how, exact)
        tracing = traced(network, inputs, tensors)
        rows, findings = _judged(network, inputs, tensors, tracing, exact)
        if findings and not tracing.complete:  # then where the layers that are to blame end isn't known
            rows, findings = _judged(network, inputs, tensors, traced(network, inputs, tensors, guess=True), exact)
        whole = whole_unit(network, inputs, outputs)
        if not findings and not _right(whole, outputs) and not (tracing.complete and _as_traced(whole, tensors[-1][1])):
            findings.append(_of_the_whole(whole, layers[-1]["name"]))
        verdict = words.verdict(findings)
        if findings and not network.integers and _right(whole, outputs):
            verdict["evidence"] += "; as it is served here the outputs are right"
        if switched:
            verdict["switched"] = [name for name, values in switched.items() if _right(whole, values)] if findings else []
            if verdict["switched"]:
                verdict["evidence"] += "; the outputs are right with " + " or ".join(verdict["switched"])
    return {"dtype": how.activations, "examples": len(inputs), "layers": rows, "verdict": verdict}


def _judged(network, inputs, tensors, tracing, exact):
    rows, findings, before = [], [], {}
    for unit in units(network, inputs, tensors, tracing):
        rows.append(_row(unit, exact[unit.name], before, tensors))
        if rows[-1]["faulty"]:
            findings.append(_finding(unit, rows[-1], network.layers[-1]["name"]))
    return rows, findings


def _right(whole, outputs):
    """Whether outputs are the network's but for rounding."""
    return whole.network.distance(np.asarray(outputs, np.float64), whole.expected, whole.tolerance) <= whole.tolerance


def _as_traced(whole, traced_outputs):
    """Whether what is served is what the tensors end in, but for rounding. Where every layer of those is right, so is what is served, even
    if the rounding of all layers together goes further than that of the simulation."""
    return whole.network.distance(whole.observed, traced_outputs.reshape(whole.observed.shape), whole.tolerance) <= whole.tolerance


def _of_the_whole(whole, last):
    """The finding where no tensor is wrong but what is served: the fault of a layer that explains it, if one does."""
    residual = whole.network.distance(whole.observed, whole.expected, whole.tolerance)
    text = "every layer gives what it should, one by one, and as served the outputs are {} off, where rounding explains {:.2g}".format(
        words.amount(residual), whole.tolerance)
    found = simplest(explanations(whole, last)) if len(whole.members) <= _MOST_MEMBERS else []
    if found:
        told = "{}; with {} of {} it is {:.2g}".format(text, found[0].detail, found[0].layer, found[0].residual)
        return words.finding(whole.network.by_name[found[0].layer], "optimization", told, found)
    return words.finding({"name": None, "kind": None}, "optimization", text)


def _row(unit, exact, before, tensors):
    residual = unit.network.distance(unit.observed, unit.expected, unit.tolerance)
    difference, most = distance(unit.observed, exact), largest(exact)
    earlier = max([before.get(name, 0.0) for name in unit.given] or [0.0])
    before[unit.name] = difference
    members = [unit.network.by_name[unit.name]] if unit.handed_on else unit.members[1:] if unit.reads_input else unit.members
    row = {
        "layer": "+".join(layer["name"] for layer in members), "kind": "+".join(layer["kind"] for layer in members),
        "tensor": tensors[unit.place.tensor][0], "layout": unit.place.layout, "shape": list(unit.observed.shape[1:]),
        "difference_max": words.number(difference), "relative": words.number(difference / most if most else np.inf),
        "ulps": words.number(difference / float(np.spacing(np.float32(most)))),
        "change_rate": words.number((difference - earlier) / (earlier + CHANGE_RATE_EPSILON) if np.isfinite(earlier) else np.inf),
        "residual": words.number(residual), "tolerance": words.number(unit.tolerance), "causal": None, "causal_tolerance": None,
        "out_of_range": False,
        "faulty": all(np.isfinite(array).all() for array in unit.given.values()) and not residual <= unit.tolerance,
    }
    if unit.network.integers:
        arrays = unit.observed, unit.expected, exact
        if all(reader["kind"] == "relu" for reader in unit.network.readers[unit.name]):
            arrays = [np.maximum(array, 0) for array in arrays]  # what lies below is cut anyway
        row["clipped"] = cut_share(*arrays, tolerance=unit.tolerance)
        row["faulty"] = row["faulty"] or row["clipped"] > CUT_VALUES
    return row


def _finding(unit, row, last):
    layer = _blamed(unit)
    told = "{} ({}) is {} from what it should be on the deployed model's own inputs, where rounding explains {:.2g}".format(
        "what is read of " + row["layer"] if unit.handed_on else row["layer"], row["tensor"], words.amount(row["residual"]), unit.tolerance)
    if not np.isfinite(unit.observed).all():
        text = "{}; {} of {} values are not finite, where the right ones go to {:.3g}".format(
            told, int((~np.isfinite(unit.observed)).sum()), unit.observed.size, largest(unit.expected))
        return words.finding(layer, "overflow", text)
    if unit.wired:
        reader, owner = unit.network.by_name[unit.wired[0]], unit.wired[1]
        fault = "branch" if reader["kind"] in ("add", "concatenate") else "wiring"
        return words.finding(reader, fault, "{}; {} reads {} in its place".format(told, reader["name"], owner))
    found = simplest(explanations(unit, last))
    if found:
        return words.finding(unit.network.by_name[found[0].layer], found[0].fault, told + "; " + words.told(found[0]), found)
    return words.finding(layer, "unknown", "{}; no known fault explains it: {}".format(
        told, words.places(np.abs(unit.observed - unit.expected) > unit.tolerance)))


def _blamed(unit):
    """The layer that is named where no hypothesis names one: the first with weights."""
    if unit.handed_on:
        return unit.network.by_name[unit.name]
    return next((layer for layer in unit.members if unit.network.own[layer["name"]][EXACT]), unit.members[-1])
