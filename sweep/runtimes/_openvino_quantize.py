"""Quantizing OpenVINO's graphs with NNCF. Every setting of it that changes numbers is given here, whether it is an option or not."""

import logging

import nncf
import numpy as np
from nncf.quantization.advanced_parameters import QuantizationParameters
from nncf.quantization.range_estimator import RangeEstimatorParametersSet

from sweep.runtimes import _openvino_graph

_EIGHT_BITS = ("i8", "u8")
_FOUR_BITS = ("i4", "u4")
_LARGEST_FLOAT16 = float(np.finfo(np.float16).max)

nncf.set_log_level(logging.ERROR)


def quantized(model, quantization, calibration, settings):
    """The graph in a row; `write` makes float16 of it. Raises ValueError for weights that are not finite or out of range."""
    if quantization != "float32":
        _check_range(model, _LARGEST_FLOAT16 if quantization == "float16" else np.inf)
        _openvino_graph.fold_known_shapes(model)
    return _MAKERS.get(quantization, _unchanged)(model, calibration, settings)


def check_weights(model, quantization, settings):
    """Raise ValueError that names the weights which a written graph still has in another type than the row's."""
    allowed = _TYPES.get(quantization)
    if allowed is None:
        return
    if settings.get("backup") == "int8":
        allowed += _EIGHT_BITS
    found = [(node.get_friendly_name(), constant.get_element_type().get_type_name()) for node, constant in _openvino_graph.weights(model)]
    if not found and quantization != "float16":
        raise ValueError("has no convolution, matrix product, recurrent layer or table with constant weights")
    left = ["{} ({})".format(name, kind) for name, kind in found if kind not in allowed]
    if left:
        raise ValueError("{} left weights as they were: {}".format(quantization, ", ".join(left)))


def _check_range(model, largest):
    for node, constant in _openvino_graph.weights(model):
        if not np.isfinite(constant.data).all():
            raise ValueError("weights of {} are not finite".format(node.get_friendly_name()))
        if np.abs(constant.data).max() > largest:
            raise ValueError("weights of {} exceed the range of float16".format(node.get_friendly_name()))
    for name, values in _openvino_graph.float_constants(model):
        if (np.abs(values[np.isfinite(values)]) > largest).any():
            raise ValueError("{} exceeds the range of float16".format(name))


def _unchanged(model, _calibration, _settings):
    return model


def _static(model, calibration, settings):
    size = settings["calibration_batch"]
    batches = [calibration[start:start + size] for start in range(0, len(calibration), size)]
    return nncf.quantize(
        model, nncf.Dataset(batches), subset_size=len(batches), target_device=nncf.TargetDevice.CPU,
        preset=nncf.QuantizationPreset(settings["preset"]), fast_bias_correction=settings["bias_correction"] == "fast",
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            overflow_fix=nncf.OverflowFix(settings["overflow_fix"]), batchwise_statistics=False,
            weights_quantization_params=QuantizationParameters(per_channel=settings["granularity"] == "channel"),
            activations_range_estimator_params=getattr(RangeEstimatorParametersSet, settings["calibration"].upper()),
        ),
    )


def _eight_bits(model, _calibration, settings):
    return nncf.compress_weights(model, mode=_mode("int8", settings))


def _four_bits(model, _calibration, settings):
    backup = {"none": nncf.BackupMode.NONE, "int8": nncf.BackupMode(_mode("int8", settings).value)}[settings["backup"]]
    return nncf.compress_weights(
        model, mode=_mode("int4", settings), ratio=1.0, all_layers=True, group_size=settings["group_size"], backup_mode=backup
    )


def _mode(bits, settings):
    return nncf.CompressWeightsMode(bits + {"symmetric": "_sym", "asymmetric": "_asym"}[settings["scheme"]])


_MAKERS = {"static_int8": _static, "weight_only_int8": _eight_bits, "weight_only_int4": _four_bits}
_TYPES = {"float16": ("f16",), "static_int8": _EIGHT_BITS, "weight_only_int8": _EIGHT_BITS, "weight_only_int4": _FOUR_BITS}
