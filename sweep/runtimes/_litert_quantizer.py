"""Quantizing a .tflite file of float32, with the quantizer that comes with LiteRT."""

import numpy as np
from ai_edge_quantizer import calibrator, quantizer
from ai_edge_quantizer.algorithm_manager import AlgorithmName
from ai_edge_quantizer.qtyping import QuantGranularity, TFLOperationName
from ai_edge_quantizer.recipe_manager import RecipeManager
from ai_edge_quantizer.utils.qsv_utils import min_max_update

from sweep.runtimes import _litert_file

_EVERYWHERE = (".*", TFLOperationName.ALL_SUPPORTED)
_GRANULARITIES = {"channel": QuantGranularity.CHANNELWISE, "tensor": QuantGranularity.TENSORWISE, None: QuantGranularity.TENSORWISE}
_RECIPES = {
    "float16": lambda recipe, by: recipe.add_weight_only_config(*_EVERYWHERE, 16, by, AlgorithmName.FLOAT_CASTING),
    "dynamic_int8": lambda recipe, by: recipe.add_dynamic_config(*_EVERYWHERE, 8, by),
    "static_int8": lambda recipe, by: recipe.add_static_config(*_EVERYWHERE, 8, 8, by),
    "int16x8": lambda recipe, by: recipe.add_static_config(*_EVERYWHERE, 16, 8, by),
    "weight_only_int8": lambda recipe, by: recipe.add_weight_only_config(*_EVERYWHERE, 8, by),
    "weight_only_int4": lambda recipe, by: recipe.add_weight_only_config(*_EVERYWHERE, 4, by),
}


def quantized(source, content, row, calibration, granularity):
    """The content of the quantized file, with inputs and outputs as they were.

    Raises ValueError that names the source: quantized already, a loop to be calibrated, or no signature to calibrate by.
    """
    root = _litert_file.model(content)
    if _litert_file.is_quantized(root):
        raise ValueError("{} is quantized already".format(source))
    recipe = RecipeManager()
    _RECIPES[row](recipe, _GRANULARITIES[granularity])
    ranges = None
    if calibration is not None:
        for end in (TFLOperationName.INPUT, TFLOperationName.OUTPUT):
            recipe.add_quantization_config(".*", end, None, AlgorithmName.NO_QUANTIZE)
        ranges = _ranges(source, root, content, recipe, calibration)
    tool = quantizer.Quantizer(bytearray(content), recipe.get_quantization_recipe())
    return bytes(tool.quantize(ranges, enable_progress_bar=False, enable_progress_report=False).quantized_model)


def _ranges(source, root, content, recipe, calibration):
    """The least and the largest value of every activation; the tool by itself takes a moving average of them."""
    if _litert_file.has_loop(root):
        raise ValueError("{}: calibration does not enter the loop of a recurrent layer".format(source))
    signature = _litert_file.signature(root)
    if signature is None:
        raise ValueError("{} has no signature, which calibration needs".format(source))
    key, name = signature
    found = calibrator.Calibrator(bytearray(content), num_threads=1, qsv_update_func=min_max_update)
    found.calibrate({key: [{name: each[np.newaxis]} for each in calibration]}, recipe)
    return found.get_model_qsvs()
