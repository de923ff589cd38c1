"""What explains the tensor of a deployed model's unit: hypotheses on its layers, each seen through what is fused behind it."""

from collections import namedtuple

import numpy as np

from sweep import hypotheses
from sweep.diagnosis._case import CLEAR, Explanation
from sweep.diagnosis._computed import EXACT
from sweep.diagnosis._rounding import floor, largest
from sweep.diagnosis._units import Inside
from sweep.hypotheses import Coarse, Deployed, Surroundings, View

FEW = 2  # examples that most hypotheses are dismissed by
_CHANNELWISE = ("batch_norm", "relu", "max_pool", "average_pool", "global_max_pool")
_IN_INTEGERS = {"scale": "quantization_scale", "clipping": "calibration"}

Part = namedtuple("Part", "layer own ends")
"""What a hypothesis is about: a member of a unit, its parameters, and the name of the layer whose output they give."""


def explanations(unit, last):
    """Every Explanation of a unit's observed tensor by `sweep.hypotheses`, the simplest first; `last` is the layer of the logits."""
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
    values = _within(unit, values)
    residual = unit.network.distance(observed, values, unit.tolerance)
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
