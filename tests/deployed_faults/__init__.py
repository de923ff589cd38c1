"""Faults in converted models, drawn from a seed, to prove what parity and the diagnosis of deployed models are worth.

    python -m tests.deployed_faults --seed N --count 60

A draw is a network of `networks`, a way to convert it (framework, runtime, row of `sweep.quantization`), a fault and a layer that can have
it. The faulty model is the converted file, edited, or a sound conversion of a network, a calibration or weights that aren't the right
ones; the runtimes themselves run it. None of it uses the hypotheses that the diagnosis tries.

What counts, said beforehand:

- A fault counts if it shows: `sweep.parity` calls the outputs `degraded` or `broken`. One that doesn't is drawn again.
- The answer must name the layer and the fault. Equal computations have one name:
  - a flatten in another order is `flatten_order`, at the flatten or at the dense layer behind it;
  - input channels reversed are `channel_order`, at the layer whose kernel it is or at what it reads;
  - windows that lie elsewhere are `padding_side`, or `stride_offset` where there is no padding;
  - an integer file's wrong scale is `quantization_scale`, a float file's `scale`;
  - a calibration that isn't one of the network's inputs is named at whichever layer it shows first.
- A sound conversion must be `equal` or `within tolerance`, and its diagnosis silent.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sweep import diagnosis, reference
from sweep.parity import WRONG

from . import onnx_file, remade, tflite_file, weighted
from .converted import ROUTES, Unsuitable, Way, Workshop, how, run, verdict
from .networks import Network, is_image, networks

ATTEMPTS = 300
ROWS = ("float32", "float16", "dynamic_int8", "static_int8")
FILES = {"onnxruntime": onnx_file, "litert": tflite_file}


class Answer(NamedTuple):
    """What was done, and what was said of it; the fault is None for a sound conversion. `layers` are those that may be named."""

    network: str
    way: Way
    fault: str | None
    form: str
    layers: tuple[str, ...]
    parity: str
    verdict: Mapping[str, Any]

    @property
    def right(self) -> bool:
        if self.fault is None:
            return self.parity not in WRONG and not self.verdict["faulty"]
        return self.parity in WRONG and self.verdict["fault"] == self.fault and self.verdict["layer"] in self.layers

    def __str__(self) -> str:
        was = f"{self.fault} at {' or '.join(self.layers)} ({self.form}; {self.network}, {' '.join(self.way)})"
        return f"{was}: {self.parity}, {self.verdict['fault']} at {self.verdict['layer']}: {self.verdict['evidence']}"


def forms() -> dict[str, list[tuple]]:
    """By fault, (source, kinds of layers, function, runtimes, rows) of each form."""
    found: dict[str, list[tuple]] = {}
    for fault, kinds, function in weighted.FORMS:
        found.setdefault(fault, []).append(("weights", kinds, function, tuple(FILES), ROWS))
    for runtime, module in FILES.items():
        for fault, kinds, function in module.FORMS:
            found.setdefault(fault, []).append(("file", kinds, function, (runtime,), ROWS))
    for fault, kinds, function, rows in remade.FORMS:
        found.setdefault(fault, []).append(("network", kinds, function, tuple(FILES), rows or ROWS))
    found["overflow"] = [("overflow", ("conv2d",), remade.overflow, ("onnxruntime",), ("float16",))]
    found["quantization_scale"] = [("tensor", None, onnx_file.scale_of_an_activation, ("onnxruntime",), ("static_int8",))]
    return found


class Drawing:
    """Draws from one seed, over networks and conversions that are made once."""

    def __init__(self, seed: int):
        self.random = np.random.RandomState(seed)
        self.networks = networks(self.random)
        self.workshop = Workshop()
        self.unseen = Counter()  # by verdict, faulty conversions that were drawn again since parity doesn't call them wrong

    def close(self) -> None:
        self.workshop.close()

    def _way(self, runtimes=tuple(ROUTES), rows=ROWS) -> Way:
        runtime = str(self.random.choice(runtimes))
        frameworks = [framework for framework, _ in ROUTES[runtime]]
        return Way(str(self.random.choice(frameworks)), runtime, str(self.random.choice(rows)))

    def _network(self) -> Network:
        return self.networks[str(self.random.choice(sorted(self.networks)))]

    def faulty(self, count: int) -> Iterator[Answer]:
        """`count` diagnosed faults, every kind of them in turn."""
        known, order = forms(), []
        for _ in range(count):
            order = order or [str(name) for name in self.random.permutation(sorted(known))]
            yield self._faulty(order.pop(), known)

    def _faulty(self, fault, known) -> Answer:
        for _ in range(ATTEMPTS):
            source, kinds, function, runtimes, rows = known[fault][self.random.randint(len(known[fault]))]
            way, network = self._way(runtimes, rows), self._network()
            places = network.kinds(*kinds) if kinds else network.layers
            if not places or (kinds == ("input",) and not is_image(network)):
                continue
            layer = places[self.random.randint(len(places))]
            try:
                right, path, layers = self._made(fault, source, function, way, network, layer)
                tensors, outputs = run(way, path, right)
            except Unsuitable:
                continue
            said = verdict(way, right, outputs)
            if said in WRONG:
                name = "quantization_scale" if fault == "scale" and source == "weights" and "int8" in way.row else fault
                judged = diagnosis.judge_deployed(right.layers, right.weights, right.inputs, tensors, outputs, how(way))
                return Answer(network.name, way, name, function.__name__, tuple(layers), said, judged["verdict"])
            self.unseen[said] += 1
        raise AssertionError(f"no conversion that {fault} shows in within {ATTEMPTS} attempts")

    def _made(self, fault, source, function, way, network, layer):
        """(right network, path of the faulty file, names of layers that may be blamed)."""
        random, name = self.random, layer["name"]
        if source == "network":
            changed = function(random, network, layer)
            anywhere = changed.calibration is not network.calibration  # then the ranges of all layers are off
            return network, self.workshop.convert_anew(changed, way), [each["name"] for each in network.layers] if anywhere else [name]
        if source == "overflow":
            right = function(random, network, layer)
            return right, self.workshop.convert_anew(right, way), [name]
        path = self.workshop.convert(network, way)
        file = FILES[way.runtime].File(path)
        if source == "weights":
            function(random, file.weighted(network, layer), network)
            layers = [name, *network.by_name[name]["inputs"]] if fault == "flatten_order" else [name]
        elif source == "tensor":
            layers = _of_tensor(function(random, file, network, layer), run(way, path, network)[0], network)
        else:
            layers = function(random, file, network, layer)
        return network, self.workshop.save(path, file.content()), layers

    def clean(self, count: int) -> Iterator[Answer]:
        """`count` sound conversions, each on inputs of its own."""
        done = 0
        while done < count:
            way, network = self._way(), self._network()
            try:
                path = self.workshop.convert(network, way)
            except Unsuitable:
                continue
            fresh = network._replace(inputs=network.again(self.random))
            tensors, outputs = run(way, path, fresh)
            judged = diagnosis.judge_deployed(fresh.layers, fresh.weights, fresh.inputs, tensors, outputs, how(way))
            yield Answer(network.name, way, None, "sound", (), verdict(way, fresh, outputs), judged["verdict"])
            done += 1


def _of_tensor(name, tensors, network):
    """Layers whose right output has a tensor's numbers, in whatever order."""
    array = dict(tensors)[name]
    exact = reference.layer_outputs(network.layers, network.weights, network.inputs)
    numbers = np.sort(array.ravel())
    off = {layer: np.abs(np.sort(values.ravel()) - numbers).mean() for layer, values in exact.items() if values.size == array.size}
    return [layer for layer, distance in off.items() if distance <= 2 * min(off.values())]
