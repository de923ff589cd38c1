"""Where a deployed model parts from the network that it was converted from, and by which fault.

Only tensors are there to go by, under names and in layouts of the file's own. They are aligned with the neutral list (`_alignment`), and
each layer, or the layers that were fused to one, is judged by what it gives for the deployed model's own inputs of it (`_units`): a layer
that only hands on what it got wrong isn't to blame. `sweep.hypotheses` explains those that are wrong.
"""

from collections import namedtuple

import numpy as np

from sweep import hypotheses, reference
from sweep.diagnosis import _words as words
from sweep.diagnosis._alignment import views
from sweep.diagnosis._case import CHANGE_RATE_EPSILON, CLEAR, Explanation, simplest
from sweep.diagnosis._computed import EXACT, Network
from sweep.diagnosis._rounding import CUT_EXAMPLES, cut_share, distance, floor, largest
from sweep.diagnosis._units import Inside, traced, units, whole_unit
from sweep.hypotheses import Coarse, Deployed, Surroundings, View

FEW = 2  # examples that most hypotheses are dismissed by
_MOST_MEMBERS = 30  # layers that are searched for what explains a whole network's outputs
_CHANNELWISE = ("batch_norm", "relu", "max_pool", "average_pool", "global_max_pool")
Part = namedtuple("Part", "layer own ends")
"""What a hypothesis is about: a member of a unit, its parameters, and the name of the layer whose output they give."""

_IN_INTEGERS = {"scale": "quantization_scale", "clipping": "calibration"}


def judge(layers, weights, inputs, tensors, outputs, how, switched=None):
    """As `sweep.diagnosis.judge`, of a deployed model's tensors: (name, array (N, ...)) in order of execution, with as little optimisation
    as its runtime can, and its `outputs` as it is served.

    `how` is the `sweep.simulation.Arithmetic` of its file; `switched` has the outputs with one option of its runtime changed, by a
    text that says which. A row has one layer, or several that were fused, joined by `+`; also `tensor`, `layout` and, of integers,
    `clipped`, the share of examples with a value beyond the tensor's range. There is no `causal`. The verdict has `switched` too: with
    which of them the outputs are right. Its `fault` is `optimization` where the tensors are right and the outputs aren't.
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
        if not findings and not _right(whole, outputs):
            findings.append(_of_the_whole(whole, layers[-1]["name"]))
        verdict = words.verdict(findings)
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


def _of_the_whole(whole, last):
    """The finding where no tensor is wrong but what is served: the fault of a layer that explains it, if one does."""
    residual = whole.network.distance(whole.observed, whole.expected, whole.tolerance)
    text = "every layer gives what it should, one by one, and as served the outputs are {} off, where rounding explains {:.2g}".format(
        words.amount(residual), whole.tolerance)
    found = simplest(_explanations(whole, last)) if len(whole.members) <= _MOST_MEMBERS else []
    if found:
        told = "{}; with {} of {} it is {:.2g}".format(text, found[0].detail, found[0].layer, found[0].residual)
        return words.finding(whole.network.by_name[found[0].layer], "optimization", told, found)
    return words.finding({"name": None, "kind": None}, "optimization", text)


def _row(unit, exact, before, tensors):
    residual = unit.network.distance(unit.observed, unit.expected, unit.tolerance)
    difference, most = distance(unit.observed, exact), largest(exact)
    earlier = max([before.get(name, 0.0) for name in unit.given] or [0.0])
    before[unit.name] = difference
    members = [unit.network.by_name[unit.name]] if unit.handed_on else unit.members
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
        row["clipped"] = cut_share(unit.observed, unit.expected, exact, unit.tolerance)
        row["faulty"] = row["faulty"] or row["clipped"] > CUT_EXAMPLES
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
    found = simplest(_explanations(unit, last))
    if found:
        return words.finding(unit.network.by_name[found[0].layer], found[0].fault, told + "; " + words.told(found[0]), found)
    return words.finding(layer, "unknown", "{}; no known fault explains it: {}".format(
        told, words.places(np.abs(unit.observed - unit.expected) > unit.tolerance)))


def _blamed(unit):
    """The layer that is named where no hypothesis names one: the first with weights."""
    if unit.handed_on:
        return unit.network.by_name[unit.name]
    return next((layer for layer in unit.members if unit.network.own[layer["name"]][EXACT]), unit.members[-1])


def _explanations(unit, last):
    few, whole = Inside(unit, FEW), Inside(unit)
    end = Part(unit.network.by_name[unit.name], {}, unit.name)
    found = _tried(unit, whole, end, hypotheses.OF_THE_RANGE) if unit.network.integers else []
    if found and found[0].ratio <= CLEAR:
        return found
    for part in _parts(unit):
        for hypothesis in hypotheses.of(part.layer, part.own, _surroundings(unit, part.layer, last)):
            if hypothesis.fault not in hypotheses.OF_THE_WHOLE_BATCH and not _agrees(unit, few, part, hypothesis, slack=10):
                continue
            agreed = _agrees(unit, whole, part, hypothesis)
            if agreed:
                found.append(_explained(unit, hypothesis.fault, hypothesis.detail, agreed, part))
    for part in _parts(unit):
        found += _tried(unit, whole, part, hypotheses.DEPLOYED)
    return found + _tried(unit, whole, end, hypotheses.OF_THE_OUTPUT)


def _parts(unit):
    """The members of a unit, and each product with what converters fold into its parameters: a normalisation that it alone reads, where
    it pads nothing, and the batch norm behind it."""
    for layer in unit.members:
        own = unit.network.own[layer["name"]][EXACT]
        yield Part(layer, own, layer["name"])
        if layer["kind"] not in ("conv2d", "conv1d", "dense"):
            continue
        norm = next((each for each in unit.members if each["kind"] == "batch_norm" and each["inputs"] == [layer["name"]]), None)
        if norm is not None:
            yield Part(layer, _behind(own, norm, unit.network.own[norm["name"]][EXACT]), norm["name"])
        before = next((each for each in unit.members if each["kind"] == "normalize" and layer["inputs"] == [each["name"]]), None)
        if before is not None and not np.any(layer["padding"]):
            folded = _before(own, before)
            reading = dict(layer, inputs=before["inputs"])
            yield Part(reading, folded, layer["name"])
            if norm is not None:
                yield Part(reading, _behind(folded, norm, unit.network.own[norm["name"]][EXACT]), norm["name"])


def _behind(own, norm, scaling):
    """A product's parameters with a batch norm behind it."""
    factor = scaling["gamma"] / np.sqrt(scaling["variance"] + norm["epsilon"])
    return {"kernel": own["kernel"] * factor, "bias": (own["bias"] - scaling["mean"]) * factor + scaling["beta"]}


def _before(own, normalization):
    """A product's parameters with a normalisation before it."""
    mean, deviation = (np.asarray(normalization[name], np.float64)[:, np.newaxis] for name in ("mean", "std"))
    kernel = own["kernel"] / deviation
    return {"kernel": kernel, "bias": own["bias"] - (kernel * mean).reshape(-1, kernel.shape[-1]).sum(axis=0)}


def _explained(unit, fault, detail, agreed, part):
    return Explanation(_IN_INTEGERS.get(fault, fault) if unit.network.integers else fault, detail, agreed[0], agreed[1], part.layer["name"])


def _surroundings(unit, layer, last):
    network = unit.network
    source = network.by_name[layer["inputs"][0]] if layer["inputs"] else layer
    flattened = network.shapes[source["inputs"][0]] if source["kind"] == "flatten" else None
    return Surroundings(network.shapes[layer["name"]], flattened, layer["name"] == last)


def _agrees(unit, inside, part, hypothesis, slack=1):
    """(residual, residual over what rounding explains) of a hypothesis on a part within `slack` of it, else None."""
    count = len(inside.values[part.ends])
    # What a fused layer gave isn't there; a hypothesis that looks at it is shown the right values, and tells nothing.
    observed = unit.observed[:count] if part.ends == unit.name else inside.values[part.ends]
    ids = None if unit.ids is None else unit.ids[:count]
    try:
        computed = hypothesis.compute(View(part.own, inside.read(part.layer), observed, ids))
        if computed is None:
            return None
        allowed = computed.tolerance if isinstance(computed, Coarse) else 0
        values = inside.rest(unit.network.by_name[part.ends], computed.values if isinstance(computed, Coarse) else computed)
    except (ValueError, IndexError):
        return None
    return _measured(unit, values, allowed, slack)


def _measured(unit, values, allowed=0, slack=1):
    observed = unit.observed[:len(values)] if values is not None else None
    if values is None or values.shape != observed.shape:
        return None
    residual = unit.network.distance(observed, _within(unit, values), unit.tolerance)
    # Values that a fault made larger are rounded by more.
    grown = max(1.0, largest(values) / max(largest(unit.expected), float(np.finfo(np.float32).tiny)))
    allowed = max(allowed, unit.tolerance * grown, floor(values, np.float32))
    return (residual, residual / allowed) if residual <= slack * allowed else None


def _within(unit, values):
    """Values as an integer tensor has them: whatever a fault made larger ends where its range does."""
    low, high = unit.observed.min(), unit.observed.max()
    return np.clip(values, low, high) if unit.network.integers and low < high else values


def _tried(unit, inside, part, rows):
    """Explanations by `sweep.hypotheses.DEPLOYED` or OF_THE_OUTPUT."""
    ends = unit.network.by_name[part.ends]
    insides = {len(unit.observed): inside}

    def rest(values):
        if len(values) not in insides:
            insides[len(values)] = Inside(unit, len(values))
        return _within(unit, insides[len(values)].rest(ends, values))

    channelwise = all(each["kind"] in _CHANNELWISE for each in inside.behind(ends))
    case = Deployed(part.layer, part.own, inside.read(part.layer), rest, channelwise, unit.expected, unit.observed, unit.tolerance,
                    unit.network.integers)
    found = []
    for fault, kinds, forms in rows:
        if kinds is None or part.layer["kind"] in kinds:
            for detail, values in forms(case):
                agreed = _measured(unit, values)
                if agreed:
                    found.append(_explained(unit, fault, detail, agreed, part))
    return found
