"""Quantizing an ONNX file, with ONNX Runtime's tools where they have the row."""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data
from onnxconverter_common.float16 import convert_float_to_float16
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

CALIBRATION_BATCH = 100
OPSET_OF_CHANNELWISE_DEQUANTIZATION = 13


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


def write(source, target, quantization, calibration):
    """Quantize source into target. Raises ValueError that names the file and the layer where one can't be quantized."""
    if quantization == "float16":
        onnx.save(_float16(source), str(target))
        return
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        # Folds constants and batch norms into the weights first. Symbolic shapes are for transformers.
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        weights = [tensor for _node, tensor, _axis in _weighted(onnx.load(str(prepared)))]
        if not weights:
            raise ValueError("{} has no Conv, Gemm or MatMul with constant weights".format(source))
        for tensor in weights:
            if not np.isfinite(numpy_helper.to_array(tensor)).all():
                raise ValueError("{}: {} is not finite".format(source, tensor.name))
        _INT8[quantization](prepared, target, calibration)
    quantized = onnx.load(str(target))
    left = [node.name or node.output[0] for node, _weights, _axis in _weighted(quantized)]
    left += [node.name or node.output[0] for node in quantized.graph.node if node.op_type in _RECURRENT]
    if left:
        raise ValueError("{}: {} left {} unquantized".format(source, quantization, ", ".join(left)))


def _float16(source):
    model = onnx.load(str(source))
    largest = float(np.finfo(np.float16).max)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and np.abs(numpy_helper.to_array(tensor)).max(initial=0) > largest:
            raise ValueError("{}: {} exceeds the range of float16".format(source, tensor.name))
    smallest = float(np.finfo(np.float16).smallest_subnormal)
    with warnings.catch_warnings():  # it warns of every weight that is rounded up to the smallest number
        warnings.simplefilter("ignore", UserWarning)
        return convert_float_to_float16(model, min_positive_val=smallest, max_finite_val=largest, keep_io_types=True)


def _dynamic(prepared, target, _calibration):
    # Unsigned weights: twice as fast as signed ones with the runtime's x86 kernels for integer convolutions, and no less accurate.
    quantize_dynamic(
        str(prepared), str(target), op_types_to_quantize=["Conv", "Gemm", "MatMul"], per_channel=True, weight_type=QuantType.QUInt8
    )


def _static(prepared, target, calibration):
    quantize_static(
        str(prepared), str(target), _Images(prepared, calibration), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QInt8, weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax,
    )


class _Images(CalibrationDataReader):
    """Calibration images in batches, as the quantizer asks for them."""

    def __init__(self, path, images):
        name = onnx.load(str(path)).graph.input[0].name
        self._feeds = ({name: images[i:i + CALIBRATION_BATCH]} for i in range(0, len(images), CALIBRATION_BATCH))

    def get_next(self):
        return next(self._feeds, None)


def _weight_only(prepared, target, _calibration):
    """Each weight becomes int8, symmetric by output channel, and a DequantizeLinear. The runtime's tools do this for MatMul alone."""
    model = onnx.load(str(prepared))
    graph = model.graph
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < OPSET_OF_CHANNELWISE_DEQUANTIZATION:
        raise ValueError("opset {} has no dequantization by channel".format(opset))
    replaced = {}  # (weight, axis) -> its dequantized name: a shared weight is stored once
    for node, weights, axis in list(_weighted(model)):
        key = (weights.name, axis)
        if key not in replaced:
            replaced[key] = "{}_dequantized_{}".format(weights.name, axis)
            _dequantized(graph, weights, axis, replaced[key])
        node.input[1] = replaced[key]
    read = {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in read]:
        graph.initializer.remove(tensor)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(target))


def _dequantized(graph, weights, axis, name):
    values = numpy_helper.to_array(weights)
    others = tuple(i for i in range(values.ndim) if i != axis)
    largest = np.abs(values).max(axis=others, keepdims=True)
    scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    integers = np.clip(np.rint(values / scale), -127, 127).astype(np.int8)
    # The zeros are the default by the standard; without them the runtime puts in a scalar and then refuses it.
    parts = {"_int8": integers, "_scale": scale.ravel(), "_zero": np.zeros(scale.size, np.int8)}
    graph.initializer.extend(numpy_helper.from_array(values, name + part) for part, values in parts.items())
    graph.node.insert(0, helper.make_node("DequantizeLinear", [name + part for part in parts], [name], name=name, axis=axis))


def _weighted(model):
    """Convolutions and matrix products with constant float weights, as (node, weights, axis of their output channels)."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    for node in model.graph.node:
        if node.op_type not in _OUTPUT_AXIS or node.input[1] not in constants:
            continue
        weights = constants[node.input[1]]
        yield node, weights, _OUTPUT_AXIS[node.op_type](node, weights)


def _gemm_axis(node, _weights):
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return 0 if transposed else 1


_OUTPUT_AXIS = {
    "Conv": lambda _node, _weights: 0,
    "Gemm": _gemm_axis,
    "MatMul": lambda _node, weights: len(weights.dims) - 1,
}
_RECURRENT = ("LSTM", "GRU", "Loop", "Scan")  # these tools leave their weights, or those in their bodies, in float32
_INT8 = {"dynamic_int8": _dynamic, "static_int8": _static, "weight_only_int8": _weight_only}
