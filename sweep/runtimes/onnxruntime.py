"""ONNX Runtime: opens an exported ONNX file, as it is or quantized.

`dynamic_int8` takes the range of an activation over the whole batch, so an image's logits depend on its companions in the batch.
"""

import os
import shutil
from pathlib import Path

import onnxruntime

from sweep.runtimes import _batches, _requests

_CUDA = "CUDAExecutionProvider"
_HAS_CUDA = _CUDA in onnxruntime.get_available_providers()

FACTS = {
    "distribution": "onnxruntime-gpu" if _HAS_CUDA else "onnxruntime",
    "converters": ["onnx", "onnxconverter-common"],
    "options": {},
    "accepts": {"onnx": "onnx"},
    "format": "onnx",
    "quantizations": ["float32", "float16", "dynamic_int8", "static_int8", "weight_only_int8"],
    "calibrated": ["static_int8"],
    "batch_dependent": ["dynamic_int8"],
    "float64": False,
    "processors": ["cpu", "gpu"] if _HAS_CUDA else ["cpu"],
}

FILE = "model.onnx"

# Without VNNI the fast 8-bit kernels saturate their 16-bit sums. This asks for exact ones, so that predictions do not depend on the
# processor; with VNNI all are exact, and it would cost an eighth of the time.
_EXACT_INT8 = "session.x64quantprecision"
_CPU_FLAGS = Path("/proc/cpuinfo")
_ERRORS_ONLY = 3


class Session:
    """An open model: the runtime's own session, the names of its one input and output, and the number of classes."""

    def __init__(self, inference, classes):
        self.inference = inference
        self.classes = classes
        self.input = inference.get_inputs()[0].name
        self.outputs = [inference.get_outputs()[0].name]

    def run(self, images):
        """Logits (B, classes) of one batch."""
        return self.inference.run(self.outputs, {self.input: images})[0]


def convert(source, source_format, folder, quantization, calibration):
    """Write `model.onnx`: the source byte for byte for float32, else quantized with float32 input and output.

    Raises ValueError that names the file: damaged, weights in a second file, an operator that this runtime does not have, or a
    layer that was left unquantized.
    """
    from sweep.runtimes import _onnxruntime_quantize

    _requests.check(FACTS, source_format, quantization, calibration)
    _onnxruntime_quantize.check_file(source)
    _inference(source, 1)  # an operator that can't run is an error of the conversion, not of the first prediction
    target = Path(folder) / FILE
    if quantization == "float32":
        shutil.copyfile(str(source), str(target))
        return FILE
    _onnxruntime_quantize.write(source, target, quantization, calibration)
    _inference(target, 1)
    return FILE


def open(path, threads, details):
    """A session that runs operators on `threads` threads, one operator at a time.

    On the GPU where CUDA_VISIBLE_DEVICES names one and this build has CUDA, without TF32. Raises ValueError that names the file
    where it is damaged, or does not have one input and one output of details["classes"] logits.
    """
    inference = _inference(path, threads)
    inputs, outputs = inference.get_inputs(), inference.get_outputs()
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError("{} has {} inputs and {} outputs, not one each".format(path, len(inputs), len(outputs)))
    if outputs[0].shape[-1] != details["classes"]:
        raise ValueError("{} gives {} logits, not {}".format(path, outputs[0].shape[-1], details["classes"]))
    return Session(inference, details["classes"])


def predict(session, images, batch_size=256):
    """Logits float32 (N, classes)."""
    return _batches.predict(session.run, images, batch_size, session.classes)


def describe(session):
    """Providers, threads and optimisations, read back from the session."""
    options = session.inference.get_session_options()
    return {
        "execution_providers": session.inference.get_providers(),
        "provider_options": session.inference.get_provider_options(),
        "intra_op_threads": options.intra_op_num_threads,
        "inter_op_threads": options.inter_op_num_threads,
        "graph_optimization_level": options.graph_optimization_level.name,
        "execution_mode": options.execution_mode.name,
        "exact_int8": "asked" if options.get_session_config_entry(_EXACT_INT8) == "1" else "by processor",
    }


def _inference(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry(_EXACT_INT8, "0" if _has_vnni() else "1")
    providers = ["CPUExecutionProvider"]
    if _HAS_CUDA and os.environ.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1"):
        providers.insert(0, (_CUDA, {"use_tf32": "0"}))
    try:
        inference = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # the runtime's exceptions have no common root
        raise ValueError("{}: {}".format(path, " ".join(str(error).split()))) from error
    if len(inference.get_providers()) != len(providers):
        raise RuntimeError("a GPU is visible and the runtime took {} alone".format(", ".join(inference.get_providers())))
    return inference


def _has_vnni():
    return _CPU_FLAGS.is_file() and "vnni" in _CPU_FLAGS.read_text()
