"""An ONNX model in double precision: every float32 in the file becomes float64, and ONNX's reference evaluator runs it.

The evaluator is written in NumPy, operator by operator, and not all of it is right. So it also runs the model as it is, in float32: only
where that is as close to the model's own runtime as rounding explains is the result in double precision a reference.
"""

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from sweep.formats import _arrays, _files
from sweep.formats._onnx_operators import OPERATORS

CHECKED = 2  # inputs; a faulty operator shows on any
ROUNDING = 64
"""Two float32 evaluations of one function round in different orders; a faulty operator is off by orders of magnitude more than this many
times the rounding of either."""

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_TYPE_ATTRIBUTES = ("to", "dtype")


def predict(path, model, inputs, batch_size, own):
    """Outputs float64 (N, ...) of inputs (N, ...). `own` gives those of the model's own runtime.

    Raises ValueError where the evaluator lacks an operator, or computes something else than that runtime.
    """
    try:
        few = inputs[:CHECKED]
        single = _evaluated(ReferenceEvaluator(model, new_ops=OPERATORS), few, batch_size)
        in_double(model)
        exact = _evaluated(ReferenceEvaluator(model, new_ops=OPERATORS), _widened(inputs), batch_size)
    except Exception as error:  # the evaluator's exceptions have no common root
        raise ValueError("{} can't be evaluated in float64: {}".format(path, _files.one_line(error))) from error
    difference, rounding = _largest(own(few), exact[:CHECKED]), _largest(single, exact[:CHECKED])
    allowed = ROUNDING * max(rounding, np.finfo(np.float32).eps * float(np.abs(exact[:CHECKED]).max(initial=0)))
    if not difference <= allowed:
        text = "{} can't be evaluated in float64: the reference evaluator is {:.1e} from the model's own runtime, {:.1e} would be rounding"
        raise ValueError(text.format(path, difference, allowed))
    return exact


def _evaluated(evaluator, inputs, batch_size):
    name = evaluator.input_names[0]
    batches = [inputs[i:i + batch_size] for i in range(0, len(inputs), batch_size)]
    return np.concatenate([_arrays.joined(evaluator.run(None, {name: batch}), len(batch), np.float64) for batch in batches])


def _widened(inputs):
    return inputs.astype(np.float64) if inputs.dtype == np.float32 else inputs


def _largest(outputs, others):
    if outputs.shape != others.shape:
        raise ValueError("outputs are {} and {}".format(outputs.shape, others.shape))
    return float(np.abs(outputs - others).max(initial=0))


def in_double(model):
    """Turn every floating-point type, tensor and attribute of a model that names one into float64, in place."""
    _graph_in_double(model.graph)
    for function in model.functions:
        _nodes_in_double(function.node)


def _graph_in_double(graph):
    for tensor in graph.initializer:
        _tensor_in_double(tensor)
    for value in list(graph.input) + list(graph.output) + list(graph.value_info):
        _type_in_double(value.type)
    _nodes_in_double(graph.node)


def _nodes_in_double(nodes):
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
            elif attribute.HasField("t"):
                _tensor_in_double(attribute.t)
            elif attribute.HasField("g"):
                _graph_in_double(attribute.g)
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = np.float64(attribute.f if attribute.name == "value_float" else attribute.floats)
                attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(values)))


def _type_in_double(kind):
    if kind.HasField("tensor_type") and kind.tensor_type.elem_type in _FLOATS:
        kind.tensor_type.elem_type = TensorProto.DOUBLE
    elif kind.HasField("sequence_type"):
        _type_in_double(kind.sequence_type.elem_type)
    elif kind.HasField("optional_type"):
        _type_in_double(kind.optional_type.elem_type)


def _tensor_in_double(tensor):
    if tensor.data_type in _FLOATS:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
