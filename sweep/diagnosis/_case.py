"""One diagnosis: every layer read on the suspect's inputs and on the reference's, and what explains those that are wrong."""

from collections import namedtuple

import numpy as np

from sweep import hypotheses, reference
from sweep.diagnosis import _words as words
from sweep.diagnosis._rounding import ROUNDING_FACTOR, cast, distance, floor, largest, tolerance
from sweep.hypotheses import Coarse, Surroundings, View
from sweep.layers import shapes

FEW = 2  # examples that most hypotheses are dismissed by
CHANGE_RATE_EPSILON = 1e-7
CLEAR = 0.25  # of what rounding explains: an explanation that leaves no more is as good as any
OF_THE_INPUTS = ("branch", "concatenation_order")  # faults that are in what a layer reads as well as in what it does

Reading = namedtuple("Reading", "view expected tolerance distance")
"""A layer on one set of inputs: float64 arrays in a View, the right output, what rounding explains, the largest difference observed."""

Explanation = namedtuple("Explanation", "fault detail residual ratio layer")
"""What agrees: the largest difference that it leaves, that over what rounding explains, and the name of the layer to blame."""


class Case:
    """What is given, and the reference's outputs."""

    def __init__(self, layers, weights, inputs, outputs, alone, dtype):
        self.layers, self.dtype, self.by_name = layers, dtype, {layer["name"]: layer for layer in layers}
        self.weights, self.shapes = weights, shapes(layers)
        texts = layers[0]["kind"] == "tokens"
        self.inputs = np.asarray(inputs).astype(np.int64 if texts else np.float64)
        self.ids = self.inputs if texts else None
        self.outputs = {name: np.asarray(values, np.float64) for name, values in outputs.items()}
        self.alone = {name: np.asarray(values, np.float64) for name, values in (alone or {}).items()}
        self.exact = reference.layer_outputs(layers, weights, self.inputs)

    def readings(self, layer):
        """The layer on the suspect's own inputs, and alone on the reference's; None for what isn't known."""
        name, own, mine, alone = layer["name"], reference.own_weights(layer, self.weights), None, None
        if name in self.outputs and all(source in self.outputs for source in layer["inputs"]):
            mine = self.read(layer, own, self.given(layer), self.outputs[name])
        if name in self.alone:
            given = [self.exact[source] for source in layer["inputs"]] or [self.inputs]
            alone = self.read(layer, own, [cast(cast(values, self.dtype), np.float64) for values in given], self.alone[name])
        return mine, alone

    def given(self, layer):
        """What the suspect's layer reads."""
        return [self.outputs[name] for name in layer["inputs"]] or [self.inputs]

    def read(self, layer, own, inputs, observed):
        """A Reading, or None where the layer can't read these inputs or they aren't finite."""
        if not all(np.isfinite(values).all() for values in inputs):
            return None
        if layer["kind"] == "embedding":
            inputs = [values.astype(np.int64) for values in inputs]
        try:
            expected = reference.apply(layer, own, *inputs)
            rounding = tolerance(layer, own, inputs, expected, self.dtype)
        except (ValueError, IndexError):
            return None
        return Reading(View(own, inputs, observed, self.ids), expected, rounding, distance(observed, expected))

    def judged(self):
        rows, findings, settled = [], [], set()
        for layer in self.layers:  # one after another, since readings hold copies of weights
            name, (mine, alone) = layer["name"], self.readings(layer)
            rows.append(self.row(layer, mine, alone))
            if name not in self.outputs:
                findings.append(words.finding(layer, "shape", "{} gives no output".format(name)))
            elif rows[-1]["faulty"] and name not in settled:
                findings.append(self.finding(layer, mine, alone, settled))
        findings += [words.finding({"name": name, "kind": None}, "shape", "{} is no layer of the network".format(name))
                     for name in sorted(set(self.outputs) - set(self.by_name))]
        return {"dtype": self.dtype, "examples": len(self.inputs), "layers": rows, "verdict": words.verdict(findings)}

    def row(self, layer, mine, alone):
        name = layer["name"]
        exact, observed = self.exact[name], self.outputs.get(name)
        difference = np.inf if observed is None else distance(observed, exact)
        before = max([distance(self.outputs[source], self.exact[source]) if source in self.outputs else np.inf
                      for source in layer["inputs"]] or [0.0])
        most = largest(exact)
        return {
            "layer": name, "kind": layer["kind"],
            "shape": None if observed is None else list(observed.shape[1:]),
            "difference_max": words.number(difference), "relative": words.number(difference / most if most else np.inf),
            "ulps": words.number(difference / float(np.spacing(np.asarray(most, self.dtype)))),
            "change_rate": words.number((difference - before) / (before + CHANGE_RATE_EPSILON) if np.isfinite(before) else np.inf),
            "residual": words.number(mine.distance if mine else np.inf), "causal": words.number(alone.distance if alone else np.inf),
            "tolerance": words.number(mine.tolerance if mine else np.inf),
            "causal_tolerance": words.number(alone.tolerance if alone else np.inf),
            "out_of_range": mine is not None and words.out_of_range(layer, mine),
            "faulty": mine is not None and mine.distance > mine.tolerance,
        }

    def finding(self, layer, mine, alone, settled):
        """What is wrong with a faulty layer; adds to `settled` the names of later layers whose residuals follow from it."""
        right_alone = alone is not None and alone.distance <= alone.tolerance
        readings = [reading for reading in (mine, alone) if reading]
        searches = [lambda: self.explanations(layer, readings), lambda: self.wirings(layer, settled)]
        if right_alone:  # then it is about what it reads; some faults of a layer with several inputs are of that sort
            searches = [lambda: self.explanations(layer, [mine], OF_THE_INPUTS), *reversed(searches)]
        for search in searches:
            found = simplest(search())
            if found:
                told = words.evidence(layer, mine, alone) + "; " + words.told(found[0])
                return words.finding(self.by_name[found[0].layer], found[0].fault, told, found)
        if mine.view.observed.shape != mine.expected.shape:
            shape = "gives {} and should give {}".format(mine.view.observed.shape[1:], mine.expected.shape[1:])
            return words.finding(layer, "shape", "{} {}".format(layer["name"], shape))
        if not np.isfinite(mine.view.observed).all():
            return words.finding(layer, "overflow", words.evidence(layer, mine, alone) + "; " + words.not_finite(mine))
        text = "{}; no known fault explains it: {}".format(words.evidence(layer, mine, alone), words.where(mine))
        if words.out_of_range(layer, mine):
            text += ", and some are out of the layer's range"
        return words.finding(layer, "unknown", text)

    def explanations(self, layer, readings, faults=None):
        """Hypotheses on the layer itself (of these faults, if given) that agree with all of its readings, the simplest first."""
        source = self.by_name[layer["inputs"][0]] if layer["inputs"] else layer
        flattened = self.shapes[source["inputs"][0]] if source["kind"] == "flatten" else None
        around = Surroundings(self.shapes[layer["name"]], flattened, layer is self.layers[-1])
        found = []
        for hypothesis in hypotheses.of(layer, readings[0].view.own, around):
            if faults is not None and hypothesis.fault not in faults:
                continue
            if hypothesis.fault not in hypotheses.OF_THE_WHOLE_BATCH:
                few = readings[0]._replace(view=_first(readings[0].view, FEW))
                if self.agreement(hypothesis, few, slack=10) is None:
                    continue
            agreements = [self.agreement(hypothesis, reading) for reading in readings]
            if None not in agreements:
                residuals, ratios = zip(*agreements)
                found.append(Explanation(hypothesis.fault, hypothesis.detail, max(residuals), max(ratios), layer["name"]))
        return found

    def agreement(self, hypothesis, reading, slack=1):
        """(residual, residual over tolerance) of a hypothesis that gives what was observed within `slack` tolerances, else None."""
        view = reading.view
        try:
            computed = hypothesis.compute(view)
            if computed is None:
                return None
            values, allowed = computed if isinstance(computed, Coarse) else (computed, reading.tolerance)
            residual = distance(view.observed, values)
            allowed = max(allowed, floor(values, self.dtype))
            if allowed < residual < 1e-2 * largest(values):  # it may round more than the right layer does
                own = {name: array.astype(self.dtype) for name, array in view.own.items()}
                single = view._replace(own=own, inputs=[cast(array, self.dtype) for array in view.inputs],
                                     observed=view.observed.astype(self.dtype))
                again = hypothesis.compute(single)
                if again is not None and not isinstance(again, Coarse):
                    allowed = max(allowed, ROUNDING_FACTOR * distance(again, values))
        except (ValueError, IndexError):
            return None
        return (residual, residual / allowed) if residual <= slack * allowed else None

    def wirings(self, layer, settled):
        """Other things that the layer may read, which explain its output though it is right itself."""
        name, found = layer["name"], []
        pairs = [(layer, other) for other in self.layers if other["inputs"] == [name]]
        if len(layer["inputs"]) == 1:
            pairs.append((self.by_name[layer["inputs"][0]], layer))
        for first, second in pairs:
            swapped = self.swapped(first, second, settled) if len(first["inputs"]) == 1 else None
            if swapped:
                return [swapped]
        behind = {name}
        for other in self.layers:
            if behind & set(other["inputs"]):
                behind.add(other["name"])
        for source in layer["inputs"]:
            for other in self.layers:
                if other["name"] != source and other["name"] not in behind:
                    agreed = self.agrees(layer, self.given_instead(layer, source, other["name"]))
                    if agreed:
                        found.append(Explanation("wiring", "it reads {} in place of {}".format(other["name"], source), *agreed, name))
        return found

    def swapped(self, first, second, settled):
        """The explanation that the second layer, which is to read the first alone, comes before it."""
        agreed = self.agrees(second, self.given(first)), self.agrees(first, [self.outputs.get(second["name"])])
        if None in agreed:
            return None
        settled.update([second["name"]] + [reader["name"] for reader in self.layers if second["name"] in reader["inputs"]
                                           and self.agrees(reader, self.given_instead(reader, second["name"], first["name"]))])
        text = "{} before {}".format(second["name"], first["name"])
        return Explanation("swapped_layers", text, *map(max, zip(*agreed)), first["name"])

    def given_instead(self, layer, name, other):
        return [self.outputs.get(other if source == name else source) for source in layer["inputs"]]

    def agrees(self, layer, inputs):
        """(residual, residual over tolerance) where the layer gives its observed output on these inputs, else None."""
        if layer["name"] not in self.outputs or any(values is None for values in inputs):
            return None
        reading = self.read(layer, reference.own_weights(layer, self.weights), inputs, self.outputs[layer["name"]])
        if reading is None or reading.distance > reading.tolerance:
            return None
        return reading.distance, reading.distance / reading.tolerance


def _first(view, few):
    return view._replace(inputs=[values[:few] for values in view.inputs], observed=view.observed[:few],
                         ids=None if view.ids is None else view.ids[:few])


def simplest(found):
    """Explanations that leave about as little as the best does, in their order: what leaves many times more only happens to be near."""
    if not found:
        return []
    limit = max(CLEAR, 2 * min(explanation.ratio for explanation in found))
    return [explanation for explanation in found if explanation.ratio <= limit]
