"""What is done to OpenVINO's graphs: reading a source, writing the intermediate representation, and looking at weights and tensors."""

import re
from pathlib import Path

import numpy as np
import openvino
from openvino.preprocess import PrePostProcessor

GRAPH = "model.xml"
"""The graph's file; its weights lie beside it in model.bin."""

_COUNTED = re.compile(r"([A-Z][A-Za-z]+)_\d+")
_NOTICED = re.compile(r"(Exception from \S+:\d+: ?|Check '.*?' failed at \S+:\d+: ?|FrontEnd API failed with \w+: ?)")
_WEIGHT_INPUTS = {
    "Convolution": [1],
    "GroupConvolution": [1],
    "ConvolutionBackpropData": [1],
    "GroupConvolutionBackpropData": [1],
    "MatMul": [0, 1],
    "Gather": [0],
    "RNNSequence": [3, 4],
    "GRUSequence": [3, 4],
    "LSTMSequence": [4, 5],
    "RNNCell": [2, 3],
    "GRUCell": [2, 3],
    "LSTMCell": [3, 4],
}
_BETWEEN = ("Convert", "Multiply", "Subtract", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "FakeQuantize")
_BODIES = {"Loop": 1, "TensorIterator": 1, "If": 2}


def read_source(path):
    """An exported file as a graph with one input, float32 or int32, and float32 outputs. Raises what the library raises."""
    model = openvino.convert_model(str(path))
    if len(model.inputs) != 1:
        raise ValueError("has {} inputs, not one".format(len(model.inputs)))
    if not sizes(model.input(0)):
        raise ValueError("its input has no axes, or any number of them")
    interface = PrePostProcessor(model)
    interface.input(0).tensor().set_element_type(
        openvino.Type.f32 if model.input(0).get_element_type().is_real() else openvino.Type.i32
    )
    for place in range(len(model.outputs)):
        interface.output(place).tensor().set_element_type(openvino.Type.f32)
    model = interface.build()
    name_by_place(model)
    return model


def name_by_place(model):
    """Name what has no name of its own by its place in the graph. The library takes a counter of the process, so that no two conversions
    would write the same file."""
    for graph in graphs(model):
        for place, node in enumerate(graph.get_ordered_ops()):
            if _is_unnamed(node):
                node.set_friendly_name("{}_{}".format(node.get_type_name(), place))


def _is_unnamed(node):
    """Whether the name is the library's, or was the library's for an operator of another kind whose place this one took."""
    name, kind = node.get_friendly_name(), node.get_type_name()
    counted = _COUNTED.fullmatch(name)
    return name == node.get_name() or bool(counted and (kind == "Constant" or counted.group(1) != kind))


def fold_known_shapes(model):
    """Put constants for shapes that are known: a weight whose shape is asked for would stay in the file as it was, beside the quantized."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ShapeOf" and node.input(0).get_partial_shape().is_static:
            shape = np.array(list(node.input(0).get_shape()), node.get_output_element_type(0).to_dtype())
            node.output(0).replace(openvino.op.Constant(shape).output(0))


def write(model, folder, half):
    """Write model.xml and model.bin into folder, with float16 weights for `half`."""
    name_by_place(model)
    openvino.save_model(model, str(Path(folder) / GRAPH), compress_to_fp16=half)  # said explicitly: the default is float16


def read(folder, core):
    """The graph of a folder that `write` filled. Raises ValueError that names it where it is damaged."""
    try:
        return core.read_model(str(Path(folder) / GRAPH))
    except RuntimeError as error:
        raise ValueError("{}: {}".format(folder, one_line(error))) from error


def one_line(error):
    """What went wrong, without the places in the library's sources where that was noticed."""
    return _NOTICED.sub("", " ".join(str(error).split()))


def graphs(model):
    """The graph, and the bodies of its loops and branches."""
    yield model
    for node in model.get_ordered_ops():
        for body in range(_BODIES.get(node.get_type_name(), 0)):
            yield from graphs(node.get_function(body) if node.get_type_name() == "If" else node.get_function())


def weights(model):
    """(node, constant) of every convolution, matrix product, recurrent layer and table of floating-point numbers that reads a constant,
    through whatever turns that one back to floating point."""
    for graph in graphs(model):
        for node in graph.get_ordered_ops():
            for position in _WEIGHT_INPUTS.get(node.get_type_name(), []):
                source = node.input_value(position)
                constant = _constant(source.get_node())
                if constant is not None and source.get_element_type().is_real() and len(constant.shape) > 1:
                    yield node, constant


def _constant(node):
    """The first constant that a node is computed from, None where something else is among them."""
    if node.get_type_name() == "Constant":
        return node
    if node.get_type_name() not in _BETWEEN:
        return None
    found = [_constant(value.get_node()) for value in node.input_values()]
    return None if any(each is None for each in found) else found[0]


def float_constants(model):
    """(name, values) of each floating-point constant."""
    for graph in graphs(model):
        for node in graph.get_ordered_ops():
            if node.get_type_name() == "Constant" and node.get_element_type().is_real():
                yield node.get_friendly_name(), np.asarray(node.data)


def sizes(output):
    """The shape of an output, -1 where a size is free, [] where even their number is."""
    shape = output.get_partial_shape()
    return [] if shape.rank.is_dynamic else [size.get_length() if size.is_static else -1 for size in shape]


def kernels(model):
    """Of each operator of a compiled graph, the kernel that runs it: `Convolution brgconv_avx512_f32`."""
    for node in model.get_ops():
        facts = node.get_rt_info()
        kind = facts["layerType"].astype(str)
        if kind not in ("Const", "Input", "Output"):
            yield "{} {}".format(kind, facts["primitiveType"].astype(str))


def stored(model):
    """Numbers of more than one element in the file, by their type: {"i8": 44190, "f32": 236}."""
    found = {}
    for graph in graphs(model):
        for node in graph.get_ordered_ops():
            count = int(np.prod(node.shape)) if node.get_type_name() == "Constant" else 1
            if count > 1:
                kind = node.get_element_type().get_type_name()
                found[kind] = found.get(kind, 0) + count
    return found


def has_quantized_activations(model):
    return any(node.get_type_name() == "FakeQuantize" for graph in graphs(model) for node in graph.get_ordered_ops())


def tensors(model):
    """(name, output, axis of the batch) of each floating-point tensor that depends on the input, in execution order; those without a
    batch are left out, and so are the insides of loops."""
    fixed = model.input(0).get_partial_shape()[0].is_static
    from_input = set()
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Parameter" or any(value.get_node().get_name() in from_input for value in node.input_values()):
            from_input.add(node.get_name())
        if node.get_name() not in from_input or node.get_type_name() in ("Parameter", "Result"):
            continue
        for place, output in enumerate(node.outputs()):
            axis = _batch_axis(output.get_partial_shape(), fixed)
            if output.get_element_type().is_real() and axis is not None:
                unnamed = node.get_friendly_name() + (":{}".format(place) if len(node.outputs()) > 1 else "")
                yield min(output.names, default=unnamed), output, axis


def _batch_axis(shape, fixed):
    if shape.rank.is_dynamic or not len(shape):
        return None
    if fixed:
        return 0 if shape[0] == openvino.Dimension(1) else None
    free = [axis for axis, size in enumerate(shape) if size.is_dynamic]
    return free[0] if len(free) == 1 or 0 in free else None
