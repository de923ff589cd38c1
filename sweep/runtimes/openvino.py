"""OpenVINO: an ONNX file, a SavedModel or a .tflite file becomes a graph of its own, as it is or quantized by NNCF, for the CPU.

Left to itself it computes in bfloat16 on a processor that has instructions for it, and rounds the activations that meet compressed
weights to 8 bits. Both are options here, and off.
"""

import contextlib
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # both packages would report every import and conversion to their maker
import openvino  # noqa: E402  after that

from sweep.runtimes import _batches, _openvino_graph, _openvino_options, _requests  # noqa: E402

FACTS = {
    "distribution": "openvino",
    "converters": ["nncf"],
    "options": _openvino_options.SERVING,
    "accepts": {"saved_model": "saved_model", "onnx": "onnx", "tflite": "tflite"},
    "format": "openvino",
    "quantizations": _openvino_options.CONVERSION,
    "calibrated": ["static_int8"],
    "batch_dependent": [],
    "layer_outputs": True,
    "float64": False,
    "processors": ["cpu"],
}

FOLDER = "openvino"

_CHUNK = 32  # inputs of which all tensors are held at once

_DEFAULTS = {name: option["default"] for name, option in _openvino_options.SERVING.items()}  # type: ignore[index]
_options = dict(_DEFAULTS)
_core = openvino.Core()


class Session:
    """A graph compiled for the CPU. `batch` is the batch size that the file is fixed to, None where it is free."""

    def __init__(self, model, threads, details):
        self.takes = model.input(0).get_partial_shape()
        self.batch = self.takes[0].get_length() if self.takes[0].is_static else None
        self.dtype = "float32" if model.input(0).get_element_type().is_real() else "int32"
        self.stored = _openvino_graph.stored(model)
        self.shapes = _options["shapes"]
        self.compiled = None
        self._model = model
        self._threads = threads
        self._prepare((1,) + tuple(details["input_shape"]))

    def run(self, inputs):
        """The joined outputs of one batch, float32 (B, ...)."""
        return _batches.joined(self.tensors(inputs))

    def tensors(self, inputs):
        """The outputs of one batch. Another batch size than the last one's takes a new input tensor, and new kernels where shapes are
        static."""
        if inputs.shape != self._input.shape:
            self._prepare(inputs.shape)
        self._input[...] = inputs  # a tensor can't share memory that is read-only
        self._request.infer()
        return [np.array(tensor.data) for tensor in self._request.output_tensors]

    def _prepare(self, shape):
        if not self.takes.compatible(openvino.PartialShape(shape)):
            raise ValueError("inputs are of shape {}, and the model takes {}".format(shape, self.takes))
        if self.compiled is None or self.shapes == "static":
            model = self._model
            if self.shapes == "static":
                model = model.clone()
                model.reshape(openvino.PartialShape(shape))
            self.compiled = _compiled(model, self._threads)
            self._request = self.compiled.create_infer_request()
        tensor = openvino.Tensor(self._model.input(0).get_element_type(), openvino.Shape(shape))
        self._request.set_input_tensor(tensor)
        self._input = tensor.data


def set_options(options):
    """Take the values of FACTS["options"] and the cell's `seed`, on which nothing here depends; what isn't given is as by default.

    Raises ValueError for any other name.
    """
    unknown = sorted(set(options) - set(_DEFAULTS) - {"seed"})
    if unknown:
        raise ValueError("no option named {!r}; there are {}".format(unknown[0], ", ".join(sorted(_DEFAULTS))))
    _options.update({name: options.get(name, default) for name, default in _DEFAULTS.items()})


def convert(source, source_format, folder, quantization, calibration, settings):
    """Write the folder `openvino` with model.xml and model.bin: float32 or int32 input, float32 outputs, a free batch where the source
    has one.

    Raises ValueError that names the source: damaged, several inputs, an operator that this runtime does not have, or weights that
    the row can't have or that were left as they were.
    """
    from sweep.runtimes import _openvino_quantize

    _requests.check(FACTS, source_format, quantization, calibration, settings)
    target = Path(folder) / FOLDER
    with contextlib.redirect_stdout(sys.stderr):  # where the tools show their progress
        try:
            model = _openvino_graph.read_source(source)
            model = _openvino_quantize.quantized(model, quantization, calibration, settings)
            _openvino_graph.write(model, target, quantization == "float16")
            written = _openvino_graph.read(target, _core)
            _openvino_quantize.check_weights(written, quantization, settings)
            _core.compile_model(written, "CPU")  # an operator that can't run is an error of the conversion, not of the first prediction
        except Exception as error:  # the tools' exceptions have no common root
            raise ValueError("{}: {}".format(source, _openvino_graph.one_line(error))) from error
    return FOLDER


def open(path, threads, details):
    """A session that runs one stream on `threads` threads.

    Raises ValueError that names the file where it is damaged, or does not take details["input_shape"] and give
    details["output_shape"]; RuntimeError where the processor can't compute in the precision asked for.
    """
    model = _openvino_graph.read(path, _core)
    _requests.check_outputs(path, [_openvino_graph.sizes(output)[1:] for output in model.outputs], details)
    try:
        session = Session(model, threads, details)
    except ValueError as error:
        raise ValueError("{}: {}".format(path, error)) from error
    if session.batch not in (None, 1):
        raise ValueError("{}: its batch is fixed at {}".format(path, session.batch))
    return session


def predict(session, inputs, batch_size=256):
    """Outputs float32 (N, ...); one by one where the batch is fixed at 1."""
    return _batches.predict(session.run, inputs, session.batch or batch_size, session.dtype)


def describe(session):
    """Precision, threads and what else was asked for, as the compiled graph says it, and its kernels; with free shapes some of them are
    chosen at the first prediction."""
    read = session.compiled.get_property
    kernels = Counter(_openvino_graph.kernels(session.compiled.get_runtime_model()))
    return {
        "execution_devices": read("EXECUTION_DEVICES"),
        "precision": read("INFERENCE_PRECISION_HINT").get_type_name(),
        "execution_mode": read("EXECUTION_MODE_HINT").name,
        "dynamic_quantization_group_size": read("DYNAMIC_QUANTIZATION_GROUP_SIZE"),
        "threads": read("INFERENCE_NUM_THREADS"),
        "streams": read("NUM_STREAMS"),
        "cpu_pinning": read("ENABLE_CPU_PINNING"),
        "shapes": session.shapes,
        "kernels": dict(sorted(kernels.items())),
        "stored": session.stored,
    }


def layer_outputs(path, threads, details, inputs):
    """{name: float32 (N, ...)} of every floating-point tensor that depends on the input, the final ones too, in execution order and the
    file's own layout, but with the batch in front; the insides of loops are left out.

    The deployed graph, compiled as `open` does it, with each of these tensors as an output, across which no operators are fused. Where
    activations are 8-bit each is had from a graph of its own that ends with it: with a convolution's output as one of several, the
    library scales what follows it twice.
    """
    model = _openvino_graph.read(path, _core)
    found = list(_openvino_graph.tensors(model))
    groups = [[each] for each in found] if _openvino_graph.has_quantized_activations(model) else [found]
    values = {}
    for group in groups:
        ending = openvino.Model([output for _name, output, _axis in group], model.get_parameters(), "tensors")
        session = Session(ending, threads, details)
        size = session.batch or _CHUNK
        parts = [session.tensors(inputs[start:start + size]) for start in range(0, len(inputs), size)]
        for place, (name, _output, axis) in enumerate(group):
            values[name] = np.concatenate([np.moveaxis(part[place], axis, 0) for part in parts]).astype(np.float32)
    return values


def _compiled(model, threads):
    """The graph compiled with every property that changes numbers or speed. Raises ValueError where it can't be, RuntimeError where the
    precision that is read back is another one."""
    asked = _options["precision"]
    config = {
        "EXECUTION_MODE_HINT": _options["execution_mode"].upper(),
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _options["dynamic_quantization_group_size"],
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # it would put the threads of every process on the same cores
    }
    if asked != "auto":
        config["INFERENCE_PRECISION_HINT"] = asked
    try:
        compiled = _core.compile_model(model, "CPU", config)
    except RuntimeError as error:
        raise ValueError(_openvino_graph.one_line(error)) from error
    taken = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if asked not in ("auto", taken):
        raise RuntimeError("asked for {}, and the library computes in {} on this processor".format(asked, taken))
    return compiled
