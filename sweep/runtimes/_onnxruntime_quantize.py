"""Quantizing an ONNX file, with ONNX Runtime's tools where they have the row."""

import contextlib
import io
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data
from onnxconverter_common.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from sweep.runtimes import _onnxruntime_weights as weights

CALIBRATION_BATCH = 100
PERCENTILE = 99.999
"""Of an activation's values, this much lies within the range that the calibration `percentile` gives it."""

_CALIBRATIONS = {"minmax": CalibrationMethod.MinMax, "entropy": CalibrationMethod.Entropy, "percentile": CalibrationMethod.Percentile}
_ACTIVATIONS = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8, "int16": QuantType.QInt16}


def check_file(path):
    """Raise ValueError that names the file where it is damaged, or keeps weights in a second file that would not travel with it."""
    try:
        model = onnx.load(str(path), load_external_data=False)
        outside = [tensor.name for tensor in model.graph.initializer if uses_external_data(tensor)]
        if not outside:
            onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # protobuf's and the checker's exceptions have no common root
        raise ValueError("{}: {}".format(path, " ".join(str(error).split()))) from error
    if outside:
        raise ValueError("{} keeps {} in a second file".format(path, ", ".join(outside)))


def write(source, target, quantization, calibration, settings):
    """Quantize source into target. Raises ValueError that names the file and the layer where one can't be quantized."""
    if quantization == "float16":
        onnx.save(_float16(source), str(target))
        return
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        # Folds constants and batch norms into the weights first. Symbolic shapes are for transformers.
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        model = onnx.load(str(prepared))
        unknown = [node for node in model.graph.node if node.op_type in _WITHOUT.get(quantization, ())] + list(weights.hidden(model.graph))
        if unknown:
            named = ", ".join("{} {}".format(node.op_type, node.name or node.output[0]) for node in unknown)
            raise ValueError("{}: {} can't quantize {}".format(source, quantization, named))
        found = list(weights.weighted(model))
        if not found:
            raise ValueError("{} has no operator with constant weights to quantize".format(source))
        for weight in found:
            if not np.isfinite(numpy_helper.to_array(weight.tensor)).all():
                raise ValueError("{}: {} is not finite".format(source, weight.tensor.name))
        try:
            onnx.save(weights.of_version(model, weights.OPSET_OF_CHANNELS), str(prepared))
            _INTEGERS[quantization](prepared, target, calibration, settings)
        except ValueError as error:
            raise ValueError("{}: {}".format(source, " ".join(str(error).split()))) from error
    left = [weight.node.name or weight.node.output[0] for weight in weights.weighted(onnx.load(str(target)))]
    if left:
        raise ValueError("{}: {} left {} unquantized".format(source, quantization, ", ".join(left)))


def _float16(source):
    model = onnx.load(str(source))
    largest = float(np.finfo(np.float16).max)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and np.abs(numpy_helper.to_array(tensor)).max(initial=0) > largest:
            raise ValueError("{}: {} exceeds the range of float16".format(source, tensor.name))
    _part_outputs(model.graph)
    smallest = float(np.finfo(np.float16).smallest_subnormal)
    with warnings.catch_warnings():  # it warns of every weight that is rounded up to the smallest number
        warnings.simplefilter("ignore", UserWarning)
        return convert_float_to_float16(
            model, min_positive_val=smallest, max_finite_val=largest, keep_io_types=True,
            op_block_list=DEFAULT_OP_BLOCK_LIST + _COMPARISONS, node_block_list=_exempted(model.graph),
        )


def _part_outputs(graph):
    """Give an output that a node reads too another name inside: the converter keeps it in float32, and reads it as float16."""
    for output in [output.name for output in graph.output]:
        readers = [node for node in graph.node if output in node.input]
        for node in graph.node if readers else ():
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    names[index] = output + "_inside" if name == output else name
        if readers:
            graph.node.append(helper.make_node("Identity", [output + "_inside"], [output], name=output + "_outside"))


def _exempted(graph, outer=()):
    """Names of what makes float32 of integers, such as counters and token ids, which float16 would round. Comparisons get constants of
    their own: the converter leaves one that something else reads too in float32, and then is wrong about what that gives."""
    constants = dict(outer, **{tensor.name: tensor for tensor in graph.initializer})
    found = []
    for position, node in enumerate(graph.node):
        if node.op_type == "Cast" and any(attribute.i == TensorProto.FLOAT for attribute in node.attribute):
            node.name = node.name or "cast_{}".format(position)
            found.append(node.name)
        if node.op_type in _COMPARISONS:
            for index, name in enumerate(node.input):
                if name in constants:
                    node.input[index] = "{}_compared_{}".format(name, position)
                    graph.initializer.add().CopyFrom(constants[name])
                    graph.initializer[-1].name = node.input[index]
        for attribute in node.attribute:
            found += _exempted(attribute.g, constants)
    return found


def _dynamic(prepared, target, _calibration, settings):
    # Unsigned weights: twice as fast as signed ones with the runtime's x86 kernels for integer convolutions, and no less accurate.
    quantize_dynamic(
        str(prepared), str(target), op_types_to_quantize=["Conv", "Gemm", "MatMul", "Gather", "LSTM"],
        per_channel=settings["granularity"] == "matrix_channel", weight_type=QuantType.QUInt8,
    )


def _static(prepared, target, calibration, settings):
    # Batch by batch, since the tool keeps every activation of what it is given at once.
    options = {"CalibStridedMinMax": 1, "CalibPercentile": PERCENTILE}
    _quantize_static(prepared, target, calibration, settings, settings["activations"], options)


def _int16x8(prepared, target, calibration, settings):
    # Symmetric activations, as other tools have them with 16 bits. What an embedding looks up is one, so its table is of 16 bits too.
    options = {"CalibStridedMinMax": 1, "CalibPercentile": PERCENTILE, "ActivationSymmetric": True}
    _quantize_static(prepared, target, calibration, settings, "int16", options)


def _quantize_static(prepared, target, calibration, settings, activations, options):
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        quantize_static(
            str(prepared), str(target), _Inputs(prepared, calibration), quant_format=QuantFormat.QDQ,
            per_channel=settings["granularity"] == "channel", activation_type=_ACTIVATIONS[activations], weight_type=QuantType.QInt8,
            calibrate_method=_CALIBRATIONS[settings["calibration"]], extra_options=options,
        )


class _Inputs(CalibrationDataReader):
    """Calibration inputs in batches, as the quantizer asks for them."""

    def __init__(self, path, inputs):
        name = onnx.load(str(path)).graph.input[0].name
        self._batches = [{name: inputs[i:i + CALIBRATION_BATCH]} for i in range(0, len(inputs), CALIBRATION_BATCH)]
        self._ahead = iter(self._batches)

    def __len__(self):
        return len(self._batches)

    def set_range(self, start_index, end_index):
        self._ahead = iter(self._batches[start_index:end_index])

    def get_next(self):
        return next(self._ahead, None)


def _weight_only(replace):
    def apply(prepared, target, _calibration, settings):
        onnx.save(replace(onnx.load(str(prepared)), settings), str(target))

    return apply


_COMPARISONS = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
_WITHOUT = {
    "dynamic_int8": ("GRU", "Loop", "Scan"), "static_int8": ("LSTM", "GRU", "Loop", "Scan"), "int16x8": ("LSTM", "GRU", "Loop", "Scan"),
}
"""Operators with weights that the runtime's tools have no such integer kernel for."""

_INTEGERS = {
    "dynamic_int8": _dynamic,
    "static_int8": _static,
    "int16x8": _int16x8,
    "weight_only_int8": _weight_only(weights.int8),
    "weight_only_int4": _weight_only(weights.int4),
    "linear": _weight_only(weights.linear),
}
