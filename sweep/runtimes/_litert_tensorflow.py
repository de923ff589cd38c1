"""A SavedModel becomes a .tflite file by the converter that comes with TensorFlow, which has quantizations of its own."""

import re

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from sweep.runtimes import _litert_file

ROWS = ("float32", "float16", "dynamic_int8", "static_int8", "int16x8")

_SIGNATURE = "serving_default"
_TYPES = {"float16": [tf.float16]}
_OPERATORS = {
    "static_int8": [tf.lite.OpsSet.TFLITE_BUILTINS_INT8],
    "int16x8": [tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8],
}
_LISTS = {"TensorListReserve"}  # what the steps of a loop give, gathered
_MAY_LOOP = {"While", "StatelessWhile", "XlaCallModule"}
_REASON = re.compile(r"error: (?:loc\(.*\): )?(.+)")
_LONGEST_REASON = 300


def converted(source, row, calibration, granularity):
    """The content of the .tflite file; `calibration` and `granularity` are None for rows that have none.

    Its batch is free, but where the graph gathers the steps of a loop: the converter can do that for elements of known shape alone, so
    that the batch is 1. Raises ValueError that names the source: an operator that the runtime does not have, a loop to be calibrated, or
    damaged.
    """
    try:
        if calibration is not None and _loops(source):
            raise ValueError("its calibration does not enter the loop of a recurrent layer")  # it would end the process
        converter = _converter(source)
        if row != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = _TYPES.get(row, [])
        converter.target_spec.supported_ops = _OPERATORS.get(row, [tf.lite.OpsSet.TFLITE_BUILTINS])
        converter._experimental_disable_per_channel = granularity == "tensor"  # no public name
        if calibration is not None:
            converter.representative_dataset = lambda: ([each[np.newaxis]] for each in calibration)
        return converter.convert()
    except Exception as error:  # the converter's exceptions have no common root
        raise ValueError("{}: {}".format(source, _reason(error))) from error


def _converter(source):
    if not _LISTS & _operators(source):
        return tf.lite.TFLiteConverter.from_saved_model(str(source), signature_keys=[_SIGNATURE])
    model = tf.saved_model.load(str(source))
    function = model.signatures[_SIGNATURE]
    inputs = list(function.structured_input_signature[1].items())
    if len(inputs) != 1:
        raise ValueError("{} inputs, not one".format(len(inputs)))
    name, any_number = inputs[0]
    single = tf.TensorSpec([1] + any_number.shape[1:], any_number.dtype, name)
    alone = tf.function(lambda values: function(**{name: values}), input_signature=[single])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([alone.get_concrete_function()], model)
    converter._experimental_default_to_single_batch_in_tensor_list_ops = True  # no public name
    return converter


def _loops(source):
    """Whether the .tflite file will have a loop; a graph in StableHLO does not show it."""
    return bool(_MAY_LOOP & _operators(source)) and _litert_file.has_loop(_litert_file.model(_converter(source).convert()))


def _operators(source):
    """The operators of all graphs of a SavedModel."""
    saved = saved_model_pb2.SavedModel()
    with open("{}/saved_model.pb".format(source), "rb") as file:
        saved.ParseFromString(file.read())
    graphs = [graph.graph_def for graph in saved.meta_graphs]
    return {node.op for graph in graphs for nodes in [graph.node] + [each.node_def for each in graph.library.function] for node in nodes}


def _reason(error):
    """What went wrong, out of a message of several thousand letters."""
    found = _REASON.search(str(error))
    text = " ".join((found.group(1) if found else str(error) or type(error).__name__).split())
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "..."
