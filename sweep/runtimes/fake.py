"""A runtime of plain NumPy for linear networks: converts in milliseconds and fails on demand.

A full member of its family, so that whole sweeps can be tested with nothing else installed. The file is an .npz of canonical weights.
A quantized one holds each kernel as int8 with its scale beside it, and for `static_int8` the scale that the calibration images gave
the input.
"""

import time
from pathlib import Path

import numpy as np

from sweep.frameworks import _faults
from sweep.runtimes import _batches, _requests

_OPTIONS = {
    "faults": {
        "meaning": "{'convert': {seed as a string: what goes wrong}} of " + ", ".join(sorted(_faults.FAULTS)), "values": [], "default": {},
    },
    "sleep_s": {"meaning": "seconds that every conversion sleeps", "values": [], "default": 0.0},
    "arithmetic": {"meaning": "the type that kernels compute in", "values": ["float32", "float64"], "default": "float32"},
}

FACTS = {
    "distribution": "numpy",
    "converters": [],
    "options": _OPTIONS,
    "accepts": {"fake": "fake"},
    "format": "fake",
    "quantizations": {
        "float32": {},
        "dynamic_int8": {},
        "static_int8": {
            "granularity": {"meaning": "what has a scale of its own", "values": ["tensor", "channel"], "default": "tensor"},
        },
    },
    "calibrated": ["static_int8"],
    "batch_dependent": [],
    "layer_outputs": True,
    "float64": False,
    "processors": ["cpu"],
}

FILE = "model.npz"
_LEVELS = 127

_DEFAULTS = {"faults": {}, "sleep_s": 0.0, "arithmetic": "float32", "seed": 0}
_options = dict(_DEFAULTS)


class Session:
    """The layers with their weights."""

    def __init__(self, layers, weights, threads):
        self.layers = layers
        self.weights = weights
        self.threads = threads
        self.arithmetic = _options["arithmetic"]

    def run(self, images):
        """Logits (B, classes) of one batch."""
        return self.outputs(images)[self.layers[-1]["name"]].astype(np.float32)

    def outputs(self, images):
        """What every layer gives, by name."""
        scale = self.weights.get("input/scale")
        outputs, images = {}, images.astype(self.arithmetic)
        for layer in self.layers:
            if layer["kind"] == "input":
                value = images if scale is None else _rounded(images, scale)
            else:
                value = _LAYERS[layer["kind"]](layer, outputs[layer["inputs"][0]], self.weights)
            outputs[layer["name"]] = value
        return outputs


def set_options(options):
    """Take the values of FACTS["options"] and the cell's `seed`; what isn't given is as it was at the start.

    Raises ValueError for any other name.
    """
    unknown = sorted(set(options) - set(_DEFAULTS))
    if unknown:
        raise ValueError("no option named {!r}; there are {}".format(unknown[0], ", ".join(sorted(FACTS["options"]))))
    _options.update(_DEFAULTS, **options)


def convert(source, source_format, folder, quantization, calibration, settings):
    """Write `model.npz`. Raises ValueError that names the file where it is damaged, and whatever the options ask for."""
    _requests.check(FACTS, source_format, quantization, calibration, settings)
    time.sleep(_options["sleep_s"])
    _faults.provoke(_options["faults"], "convert", _options["seed"])
    weights = _read(source)
    if quantization != "float32":
        for name in [name for name in weights if name.endswith("/kernel")]:
            scale = _scale(weights[name], 0 if settings.get("granularity") == "channel" else None)
            weights[name + "/scale"] = scale
            weights[name] = np.rint(weights[name] / scale).astype(np.int8)
    if quantization == "static_int8":
        weights["input/scale"] = _scale(calibration, None)
    np.savez(str(Path(folder) / FILE), **weights)
    return FILE


def open(path, threads, details):
    """A session; NumPy's threads are set by the environment, before it is loaded. Raises ValueError that names a damaged file."""
    unknown = sorted({layer["kind"] for layer in details["layers"]} - set(_LAYERS) - {"input"})
    if unknown:
        raise ValueError("{} has layers of kinds that do not run here: {}".format(path, ", ".join(unknown)))
    return Session(details["layers"], _read(path), threads)


def predict(session, images, batch_size=256):
    """Logits float32 (N, classes)."""
    return _batches.predict(session.run, images, batch_size, "float32")


def describe(session):
    """The kernels' types as they are in the file, what they compute in, and the threads asked for."""
    kernels = {name: str(array.dtype) for name, array in session.weights.items() if name.endswith("/kernel")}
    return {"kernels": kernels, "arithmetic": session.arithmetic, "threads": session.threads}


def layer_outputs(path, threads, details, inputs):
    """What every layer gives on inputs (N, H, W, C)."""
    return open(path, threads, details).outputs(inputs)


def _read(path):
    try:
        with np.load(str(path), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive raises one of half a dozen types
        raise ValueError("{}: {}".format(path, " ".join(str(error).split()))) from error


def _scale(values, axis):
    largest = np.abs(values).max(axis=axis)
    return np.where(largest > 0, largest / _LEVELS, 1).astype(np.float32)


def _rounded(values, scale):
    return np.clip(np.rint(values / scale), -_LEVELS, _LEVELS) * scale


def _normalize(layer, values, _weights):
    return (values - np.array(layer["mean"], np.float32)) / np.array(layer["std"], np.float32)


def _flatten(_layer, values, _weights):
    return values.reshape(len(values), -1)


def _dense(layer, values, weights):
    kernel, scale = layer["name"] + "/kernel", weights.get(layer["name"] + "/kernel/scale")
    if scale is None:
        return values @ weights[kernel] + weights[layer["name"] + "/bias"]
    if "input/scale" not in weights:  # dynamic: the range of each image's own activations
        largest = np.abs(values).max(axis=1, keepdims=True)
        values = _rounded(values, np.where(largest > 0, largest / _LEVELS, 1).astype(np.float32))
    return values @ weights[kernel].astype(np.float32) * scale + weights[layer["name"] + "/bias"]


_LAYERS = {"normalize": _normalize, "flatten": _flatten, "dense": _dense}
