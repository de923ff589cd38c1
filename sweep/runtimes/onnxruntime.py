"""ONNX Runtime: opens an exported ONNX file, as it is or quantized.

`dynamic_int8` takes the range of an activation over the whole batch, so an image's logits depend on its companions in the batch.
`int16x8` has no integer kernels: it is computed in float32 between its roundings, so a value halfway between two 16-bit steps goes to
one or the other by the size of the batch, and some logits differ by a step.
There is no bfloat16: the CPU's convolutions and products have no kernels for it.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import onnxruntime

from sweep.runtimes import _batches, _linear, _requests

_CUDA = "CUDAExecutionProvider"
_HAS_CUDA = _CUDA in onnxruntime.get_available_providers()

_LEVELS = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_OPTIONS = {
    "optimization": {"meaning": "which graph optimisations a file gets when it is opened", "values": list(_LEVELS), "default": "all"},
    "exact_int8": {
        "meaning": "8-bit kernels whose 16-bit sums do not saturate; auto asks for them on a processor without VNNI, with which all are",
        "values": ["auto", "on", "off"], "default": "auto",
    },
    "weight_only_products": {
        "meaning": "what products with weight-only integers compute in from the optimisation `extended` on; the runtime's default is int8",
        "values": ["float32", "int8"], "default": "float32",
    },
}
_BY_CHANNEL = {"meaning": "what has a scale of its own", "values": ["channel", "tensor"], "default": "channel"}
_BY_MATRIX_CHANNEL = {
    "meaning": "what has a scale of its own: any tensor, or of a matrix each output channel; to a convolution's kernel the tool gives one",
    "values": ["matrix_channel", "tensor"], "default": "matrix_channel",
}
_BY_TENSOR = dict(_BY_CHANNEL, default="tensor")
_CALIBRATION = {
    "meaning": "how ranges follow from the calibration inputs", "values": ["minmax", "entropy", "percentile"], "default": "minmax",
}

FACTS = {
    "distribution": "onnxruntime-gpu" if _HAS_CUDA else "onnxruntime",
    "converters": ["onnx", "onnxconverter-common"],
    "options": _OPTIONS,
    "accepts": {"onnx": "onnx"},
    "format": "onnx",
    "quantizations": {
        "float32": {},
        "float16": {},
        "dynamic_int8": {"granularity": _BY_MATRIX_CHANNEL},
        "static_int8": {
            "granularity": _BY_CHANNEL,
            "calibration": _CALIBRATION,
            "activations": {"meaning": "the type of activations", "values": ["int8", "uint8"], "default": "int8"},
        },
        "int16x8": {"granularity": _BY_CHANNEL, "calibration": _CALIBRATION},
        "weight_only_int8": {},
        "weight_only_int4": {
            "granularity": {
                "meaning": "what has a scale of its own: an output channel, or 32 inputs of one (in a convolution, still a channel)",
                "values": ["channel", "block"], "default": "channel",
            },
        },
        "linear": {
            "bits": {"meaning": "of each weight", "values": [16, 8, 4], "default": 16},
            "granularity": _BY_TENSOR,
            "rounding": {"meaning": "to the nearest level, or to the one below", "values": list(_linear.ROUNDINGS), "default": "nearest"},
        },
    },
    "calibrated": ["static_int8", "int16x8"],
    "batch_dependent": ["dynamic_int8", "int16x8"],
    "layer_outputs": True,
    "float64": False,
    "processors": ["cpu", "gpu"] if _HAS_CUDA else ["cpu"],
}

FILE = "model.onnx"

_EXACT_INT8 = "session.x64quantprecision"
_PRODUCTS = "session.qdq_matmulnbits_accuracy_level"
_PRODUCT_LEVELS = {"float32": "1", "int8": "4"}
_CPU_FLAGS = Path("/proc/cpuinfo")
_ERRORS_ONLY = 3
_DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64"}
_DTYPES.update(("tensor({})".format(name), name) for name in ("float16", "bool"))
_DTYPES.update(("tensor({}int{})".format(sign, bits), "{}int{}".format(sign, bits)) for sign in ("", "u") for bits in (8, 16, 32, 64))

_DEFAULTS = dict({name: option["default"] for name, option in _OPTIONS.items()}, seed=0)
_options = dict(_DEFAULTS)


class Session:
    """An open model: the runtime's own session, its one input, and how many inputs it takes at once (None: any number)."""

    def __init__(self, inference, dtype, batch):
        self.inference = inference
        self.dtype = dtype
        self.batch = batch
        self.input = inference.get_inputs()[0].name
        self.outputs = [output.name for output in inference.get_outputs()]

    def run(self, inputs):
        """Outputs float32 (B, ...) of one batch."""
        return _batches.joined([each.astype(np.float32, copy=False) for each in self.inference.run(self.outputs, {self.input: inputs})])


def set_options(options):
    """Take the values of FACTS["options"] and the cell's `seed`, for whatever is converted or opened from now on; what isn't given is as by
    default. Raises ValueError for any other name."""
    unknown = sorted(set(options) - set(_DEFAULTS))
    if unknown:
        raise ValueError("no option named {!r}; there are {}".format(unknown[0], ", ".join(sorted(_OPTIONS))))
    _options.update(_DEFAULTS, **options)


def convert(source, source_format, folder, quantization, calibration, settings):
    """Write `model.onnx`: the source byte for byte for float32, else quantized with float32 input and output.

    Raises ValueError that names the file: damaged, weights in a second file, an operator that this runtime does not have, or a
    layer that was left unquantized.
    """
    from sweep.runtimes import _onnxruntime_quantize

    _requests.check(FACTS, source_format, quantization, calibration, settings)
    _onnxruntime_quantize.check_file(source)
    inference(source, 1)  # an operator that can't run is an error of the conversion, not of the first prediction
    target = Path(folder) / FILE
    if quantization == "float32":
        shutil.copyfile(str(source), str(target))
        return FILE
    _onnxruntime_quantize.write(source, target, quantization, calibration, settings)
    inference(target, 1)
    return FILE


def open(path, threads, details):
    """A session that runs operators on `threads` threads, one operator at a time.

    On the GPU where CUDA_VISIBLE_DEVICES names one and this build has CUDA, without TF32. Raises ValueError that names the file
    where it is damaged, or is not of details["input_dtype"], ["input_shape"] and ["output_shape"].
    """
    opened = inference(path, threads)
    inputs, outputs = opened.get_inputs(), opened.get_outputs()
    if len(inputs) != 1:
        raise ValueError("{} has {} inputs, not one".format(path, len(inputs)))
    dtype = _DTYPES.get(inputs[0].type, inputs[0].type)
    if dtype != details["input_dtype"]:
        raise ValueError("{} takes {}, not {}".format(path, dtype, details["input_dtype"]))
    for output in outputs:
        if output.type not in _DTYPES:
            raise ValueError("{} gives {} as {}, which is no array of numbers".format(path, output.name, output.type))
    _requests.check_outputs(path, [_filled(output.shape[1:], details["output_shape"]) for output in outputs], details)
    return Session(opened, dtype, _batch(path, inputs[0].shape, details["input_shape"]))


def predict(session, inputs, batch_size=256):
    """Outputs float32 (N, ...), at once as many as the file takes."""
    return _batches.predict(session.run, inputs, min(batch_size, session.batch or batch_size), session.dtype)


def layer_outputs(path, threads, details, inputs):
    """Every tensor of floating point that follows from the inputs, by name, as float32 (N, ...), in order of execution.

    The file as it is with each tensor as an output, opened without graph optimisations: these would fuse the operators between them.
    """
    import onnx

    from sweep.formats import _collecting, _onnx_tensors

    session = open(path, threads, details)
    exposed, names = _onnx_tensors.exposed(onnx.load(str(path)))
    opened = inference(exposed, threads, "disabled")
    return _collecting.collected(lambda part: opened.run(names, {session.input: part}), names, inputs, session.batch)


def describe(session):
    """Providers, threads and optimisations, read back from the session."""
    options = session.inference.get_session_options()
    products = {level: name for name, level in _PRODUCT_LEVELS.items()}
    return {
        "execution_providers": session.inference.get_providers(),
        "provider_options": session.inference.get_provider_options(),
        "intra_op_threads": options.intra_op_num_threads,
        "inter_op_threads": options.inter_op_num_threads,
        "graph_optimization_level": options.graph_optimization_level.name,
        "execution_mode": options.execution_mode.name,
        "exact_int8": "asked" if options.get_session_config_entry(_EXACT_INT8) == "1" else "by processor",
        "weight_only_products": products[options.get_session_config_entry(_PRODUCTS)],
    }


def inference(model, threads, optimization=None):
    """The runtime's own session on a path or the bytes of a file, with the options; raises ValueError that names the path."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = _LEVELS[optimization or _options["optimization"]]
    options.log_severity_level = _ERRORS_ONLY
    exact = {"auto": not _has_vnni(), "on": True, "off": False}[_options["exact_int8"]]
    options.add_session_config_entry(_EXACT_INT8, str(int(exact)))
    options.add_session_config_entry(_PRODUCTS, _PRODUCT_LEVELS[_options["weight_only_products"]])
    providers = ["CPUExecutionProvider"]
    if _HAS_CUDA and os.environ.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1"):
        providers.insert(0, (_CUDA, {"use_tf32": "0"}))
    try:
        opened = onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model), options, providers=providers)
    except Exception as error:  # the runtime's exceptions have no common root
        name = "the model with its layers as outputs" if isinstance(model, bytes) else model
        raise ValueError("{}: {}".format(name, " ".join(str(error).split()))) from error
    if len(opened.get_providers()) != len(providers):
        raise RuntimeError("a GPU is visible and the runtime took {} alone".format(", ".join(opened.get_providers())))
    return opened


def _has_vnni():
    return _CPU_FLAGS.is_file() and "vnni" in _CPU_FLAGS.read_text()


def _filled(shape, expected):
    """A shape whose free extents are taken to be the expected ones."""
    same_rank = expected is not None and len(shape) == len(expected)
    return [size if isinstance(size, int) else expected[axis] if same_rank else None for axis, size in enumerate(shape)]


def _batch(path, shape, expected):
    """How many inputs a file takes at once. Raises ValueError where that is another number than 1, or inputs have another shape."""
    if len(shape) != len(expected) + 1 or any(isinstance(size, int) and size != wanted for size, wanted in zip(shape[1:], expected)):
        raise ValueError("{} takes inputs of shape {}, not {}".format(path, tuple(shape[1:]), tuple(expected)))
    if not isinstance(shape[0], int):
        return None
    if shape[0] != 1:
        raise ValueError("{} takes {} inputs at once".format(path, shape[0]))
    return 1
