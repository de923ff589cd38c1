"""Faults of frameworks, drawn from a seed and performed in real frameworks, to prove what the diagnosis is worth.

    python -m tests.faults --seed N --count 60

A draw is a random network with weights as training leaves them, random inputs, a fault and a layer that can have it. The suspect is a
real framework's model: built from a faulty list, or given faulty weights, or (where neither can express the fault) with one layer
computed by a framework's own operators in the faulty way. None of it uses the hypotheses that the diagnosis tries.

What counts, said beforehand:

- A fault counts if it breaks parity as the program has it: a logit further from the float64 reference than eight times the float32
  error. One that doesn't (a swap of two layers that commute, padding over a border of zeros) is drawn again.
- The answer must name the layer and the fault. Two layers in the wrong order are named by the first of them.
- Equal computations have one name: windows that are shifted where there is padding are `padding_side`, and `stride_offset` where there is
  none; a layer of several inputs that reads one of them twice is `branch`, by whatever way.
- `unknown` is the right answer to noise in a layer's weights.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sweep import diagnosis, metrics, reference

from .catalogue import FAULTS, Unsuitable
from .networks import Drawn, draw

ATTEMPTS = 200


class Answer(NamedTuple):
    """What was done to a network and what the diagnosis said; the fault is None for a clean pair."""

    framework: str
    fault: str | None
    form: str
    layer: str | None
    verdict: Mapping[str, Any]

    @property
    def right(self) -> bool:
        if self.fault is None:
            return not self.verdict["faulty"]
        return (self.verdict["fault"], self.verdict["layer"]) == (self.fault, self.layer)

    def __str__(self) -> str:
        was = f"{self.fault} at {self.layer} ({self.form}, {self.framework})"
        return f"{was}: {self.verdict['fault']} at {self.verdict['layer']}: {self.verdict['evidence']}"


def faulty(seed: int, count: int, frameworks: tuple[str, ...] = ("pytorch", "tensorflow")) -> Iterator[Answer]:
    """`count` diagnosed faults, every kind of them in turn."""
    random = np.random.RandomState(seed)
    order: list[str] = []
    for _ in range(count):
        order = order or [str(name) for name in random.permutation(sorted(FAULTS))]
        fault = order.pop()
        yield _faulty(random, fault, frameworks)


def _faulty(random: np.random.RandomState, fault: str, frameworks: tuple[str, ...]) -> Answer:
    for _ in range(ATTEMPTS):
        framework = str(random.choice(frameworks))
        network = draw(random, framework)
        forms = FAULTS[fault]
        form = forms[random.randint(len(forms))]
        places = [layer for layer in network.layers if layer["kind"] in form.kinds]
        if not places or framework not in form.frameworks:
            continue
        layer = places[random.randint(len(places))]
        try:
            suspect = form.perform(random, network, layer)
            if framework == "tensorflow" and _has_dead_layers(suspect.get("layers", network.layers)):
                continue
            outputs, alone = run(framework, network, **suspect)
        except Unsuitable:
            continue
        if breaks_parity(network, outputs[network.layers[-1]["name"]]):
            verdict = diagnosis.judge(network.layers, network.weights, network.inputs, outputs, alone)["verdict"]
            return Answer(framework, fault, form.perform.__name__.strip("_"), layer["name"], verdict)
    raise AssertionError(f"no network that {fault} shows in within {ATTEMPTS} attempts")


def _has_dead_layers(layers) -> bool:
    """Keras doesn't build what nobody reads."""
    read = {name for layer in layers for name in layer["inputs"]}
    return any(layer["name"] not in read for layer in layers[:-1])


def clean(seed: int, count: int, frameworks: tuple[str, ...] = ("pytorch", "tensorflow")) -> Iterator[Answer]:
    """`count` diagnosed models without a fault."""
    random = np.random.RandomState(seed)
    for _ in range(count):
        framework = str(random.choice(frameworks))
        network = draw(random, framework)
        outputs, alone = run(framework, network)
        verdict = diagnosis.judge(network.layers, network.weights, network.inputs, outputs, alone)["verdict"]
        yield Answer(framework, None, "clean", None, verdict)


def run(name: str, network: Drawn, layers=None, weights=None, instead=None):
    """Outputs of a framework's model by layer, and of each layer alone on the reference's inputs.

    `layers` and `weights` are what the model is built from where they aren't the network's; `instead` has, by name of a layer, the
    function of its inputs that is computed in its place.
    """
    framework = importlib.import_module(f"sweep.frameworks.{name}")
    layers, weights, instead = layers or network.layers, weights or network.weights, instead or {}
    model = framework.build(layers, "identical", 0)
    framework.set_weights(model, weights)

    def own(layer, *given):
        return framework.run_layer(model, layer["name"], given) if layer["inputs"] else given[0]

    def alone(layer, given):
        if layer["name"] in instead:
            return instead[layer["name"]](*given, own=lambda *inputs: own(layer, *inputs))
        return own(layer, *given)

    if instead:
        outputs: dict[str, np.ndarray] = {}
        for layer in layers:
            outputs[layer["name"]] = alone(layer, [outputs[source] for source in layer["inputs"]] or [network.inputs])
    else:
        outputs = framework.layer_outputs(model, network.inputs)
    exact = reference.layer_outputs(network.layers, network.weights, network.inputs)
    read = {layer["name"]: [_single(exact[source]) for source in layer["inputs"]] or [network.inputs] for layer in network.layers}
    return outputs, {layer["name"]: alone(layer, read[layer["name"]]) for layer in layers}


def _single(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind == "i" else values.astype(np.float32)


def breaks_parity(network: Drawn, logits: np.ndarray) -> bool:
    exact = reference.logits(network.layers, network.weights, network.inputs)
    error = np.abs(reference.logits(network.layers, network.weights, network.inputs, np.float32) - exact).max()
    return not (logits.shape == exact.shape and np.abs(logits - exact).max() <= metrics.PARITY_FACTOR * error)
