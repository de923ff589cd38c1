"""The networks whose conversions get faults: architectures of the study, and small ones that are drawn."""

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from sweep import components, reference
from sweep import layers as neutral

drawing = import_module(__package__.replace("deployed_faults", "faults") + ".networks")  # beside this one, whatever that is called

CLASSES, VOCABULARY, STEPS = 8, 60, 12
CALIBRATIONS = 10  # times the inputs
SPREAD_LEAST = 1e-3


class Network(NamedTuple):
    """Neutral layers, canonical weights as training leaves them, inputs, and other inputs of the same kind to calibrate with."""

    name: str
    layers: list[dict[str, Any]]
    weights: dict[str, np.ndarray]
    inputs: np.ndarray
    calibration: np.ndarray

    @property
    def by_name(self):
        return {layer["name"]: layer for layer in self.layers}

    def kinds(self, *kinds):
        return [layer for layer in self.layers if layer["kind"] in kinds]

    def again(self, random):
        """Other inputs."""
        return drawing.again(random, self.layers[0])


def networks(random) -> dict[str, Network]:
    """By name; every architecture for images with a normalisation, as its data sets have."""
    lists = {
        "lenet5": _normalized(_architecture("lenet5").layers((28, 28, 1), CLASSES)),
        "resnet20": _normalized(_architecture("resnet20").layers((16, 16, 3), CLASSES)),
        "textcnn": _architecture("textcnn").layers((STEPS,), CLASSES, VOCABULARY),
        "lstm": _architecture("lstm").layers((STEPS,), CLASSES, VOCABULARY),
        "gru": _architecture("gru").layers((STEPS,), CLASSES, VOCABULARY),
    }
    for name, wanted in _WANTED.items():
        lists[name] = _drawn(random, wanted)
    return {name: with_weights(random, name, neutral.resolved(layers, "identical", {})) for name, layers in lists.items()}


def with_weights(random, name, layers):
    """Drawn until no layer is silent: what is behind it would have no fault to show, and no range to calibrate."""
    while True:
        calibration = np.concatenate([drawing.again(random, layers[0]) for _ in range(CALIBRATIONS)])
        weights = drawing.trained(random, layers, drawing.again(random, layers[0]))
        inputs = drawing.again(random, layers[0])
        if all(values.std(axis=0).max() > SPREAD_LEAST * np.abs(values).max()
               for values in reference.layer_outputs(layers, weights, inputs).values()):
            return Network(name, layers, weights, inputs, calibration)


def _architecture(name):
    return components.load("architectures", name)


def _normalized(layers):
    channels = layers[0]["shape"][-1]
    rest = [dict(layer, inputs=["normalize" if name == "input" else name for name in layer["inputs"]]) for layer in layers[1:]]
    return [layers[0], neutral.normalize("normalize", "input", [0.3] * channels, [0.25] * channels), *rest]


_WANTED = {
    "padded averages": lambda layer: layer["kind"] == "average_pool" and np.any(layer["padding"]),
    "maxima": lambda layer: layer["kind"] == "max_pool",
    "norms": lambda layer: layer["kind"] == "batch_norm",
}


def _drawn(random, wanted):
    """A network for images that has such a layer."""
    while True:
        layers = drawing.draw(random, "pytorch").layers
        if layers[0]["kind"] == "input" and any(map(wanted, layers)):
            return layers


def is_image(network: Network) -> bool:
    return network.layers[0]["kind"] == "input"
