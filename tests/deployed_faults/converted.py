"""Conversions, made once each, and what runtimes make of them."""

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import numpy as np
import onnx

from sweep import allowance, components, parity, quantization, reference, simulation
from sweep.stages.diagnose import layer_outputs

ROUTES = {"onnxruntime": [("pytorch", "onnx"), ("tensorflow", "onnx")], "litert": [("tensorflow", "saved_model")]}


class Unsuitable(Exception):
    """This conversion can't be had, or can't have this fault."""


class Way(NamedTuple):
    framework: str
    runtime: str
    row: str


class Workshop:
    """Keeps what it converted in a folder of its own."""

    def __init__(self):
        self.folder = Path(mkdtemp(prefix="deployed-faults-"))
        self.exported, self.deployed = {}, {}

    def close(self):
        shutil.rmtree(self.folder)

    def convert(self, network, way):
        """The path of the deployed file of a network as it is, made once."""
        if (network.name, way) not in self.deployed:
            try:
                if (network.name, way.runtime, way.framework) not in self.exported:
                    self.exported[network.name, way.runtime, way.framework] = self._export(network, way)
                self.deployed[network.name, way] = self._deploy(self.exported[network.name, way.runtime, way.framework], network, way)
            except ValueError as error:
                self.deployed[network.name, way] = Unsuitable(str(error))
        found = self.deployed[network.name, way]
        if isinstance(found, Unsuitable):
            raise found
        return found

    def convert_anew(self, network, way):
        """The same of a network that isn't what its name says."""
        try:
            return self._deploy(self._export(network, way), network, way)
        except ValueError as error:
            raise Unsuitable(str(error)) from error

    def _export(self, network, way):
        framework = components.load("frameworks", way.framework)
        framework.configure(1)
        model = framework.build(network.layers, "identical", 0)
        framework.set_weights(model, network.weights)
        folder = Path(mkdtemp(dir=self.folder))
        target = dict(ROUTES[way.runtime])[way.framework]
        return target, folder / framework.export(model, network.layers, target, folder)

    def _deploy(self, exported, network, way):
        runtime, (target, source) = _runtime(way), exported
        row = runtime.FACTS["quantizations"].get(way.row)
        if row is None:
            raise ValueError(f"{way.runtime} has no {way.row}")
        folder = Path(mkdtemp(dir=self.folder))
        calibration = network.calibration if way.row in runtime.FACTS["calibrated"] else None
        settings = {name: option["default"] for name, option in row.items()}
        path = folder / runtime.convert(source, target, folder, way.row, calibration, settings)
        if way.row == "static_int8" and path.suffix == ".onnx" and _has_infinite_scale(path):
            raise ValueError("a quantizer took the -inf that pads a maximum for a value: no sound conversion")
        return path

    def save(self, path, content):
        """A changed copy of a deployed file."""
        changed = Path(mkdtemp(dir=self.folder)) / path.name
        changed.write_bytes(content)
        return changed


def _has_infinite_scale(path):
    tensors = [tensor for tensor in onnx.load(str(path)).graph.initializer if tensor.name.endswith("scale")]
    return any(not np.isfinite(onnx.numpy_helper.to_array(tensor)).all() for tensor in tensors)


def _runtime(way):
    runtime = components.load("runtimes", way.runtime)
    if runtime.FACTS["options"]:
        runtime.set_options({option: facts["default"] for option, facts in runtime.FACTS["options"].items()} | {"seed": 0})
    return runtime


def run(way, path, network):
    """The model's tensors, as the diagnosis takes them, and its outputs. What the runtime refuses is Unsuitable: that fault isn't silent."""
    runtime = _runtime(way)
    shape = list(network.layers[0]["shape"])
    classes = network.layers[-1]["units"]
    details = {"input_shape": shape, "input_dtype": str(network.inputs.dtype), "output_shape": [classes], "format": runtime.FACTS["format"],
               "file": path.name, "layers": network.layers, "quantization": way.row}
    try:
        session = runtime.open(path, 1, details)
        outputs = runtime.predict(session, network.inputs, 1 if way.row in runtime.FACTS["batch_dependent"] else 256)
        return list(layer_outputs(runtime, path, 1, details, network.inputs).items()), outputs
    except Exception as error:
        raise Unsuitable(str(error)) from error


def how(way):
    options = _runtime(way).FACTS["quantizations"][way.row]
    return simulation.arithmetic(quantization.ROWS[way.row], {name: option["default"] for name, option in options.items()})


def verdict(way, network, outputs):
    """What parity says, and may say, of the outputs."""
    exact = reference.logits(network.layers, network.weights, network.inputs)
    source = reference.logits(network.layers, network.weights, network.inputs, np.float32)
    simulated = simulation.logits(network.layers, network.weights, network.inputs, how(way))
    products = len(network.kinds(*simulation.PRODUCTS))
    plain = allowance.float32(source, exact, products)
    allowed = allowance.of(how(way), plain, source, exact, simulated, products, len(network.calibration))
    return parity.verdict(outputs, source, allowed)["verdict"]
