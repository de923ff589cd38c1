"""Weights of an ONNX file stored as integers, each with an operator that turns it back to float32 before it is used.

The runtime's own tools do this for MatMul alone.
"""

from collections import namedtuple

import ml_dtypes
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, version_converter

from sweep.runtimes import _linear

BLOCK = 32
OPSET_OF_CHANNELS, _OPSET_OF_OTHER_TYPES = 13, 21  # of DequantizeLinear by channel; of its 4-bit and 16-bit types, and by block
_IR_OF_OTHER_TYPES = 10

Weight = namedtuple("Weight", "node index tensor channels block")
"""A constant weight: which node reads it as which input, the axis of its output channels, and the one that a block lies along."""

_Stored = namedtuple("_Stored", "integers scale least attributes")
"""What a file holds of a weight, which is `integers` x `scale` (+ `least`); `attributes` are DequantizeLinear's."""


def weighted(model):
    """Every Weight of the graph: of convolutions, matrix products, embeddings and recurrent layers."""
    yield from _weights(model.graph, _constants(model.graph))


def hidden(graph, outer=None):
    """Nodes in the bodies of loops and branches that read a constant weight there, where it can't be replaced."""
    constants = dict(outer or {}, **_constants(graph))
    for node in graph.node:
        for attribute in node.attribute:
            body = attribute.g
            yield from (weight.node for weight in _weights(body, dict(constants, **_constants(body))))
            yield from hidden(body, constants)


def _constants(graph):
    return {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}


def _weights(graph, constants):
    for node in graph.node:
        for index, channels, block in _PLACES.get(node.op_type, _nowhere)(node, constants):
            yield Weight(node, index, constants[node.input[index]], channels, block)


def int8(model, _settings):
    """8 bits, symmetric by output channel."""
    return _replaced(model, lambda values, weight: _symmetric(values, 127, np.int8, weight.channels), OPSET_OF_CHANNELS)


def int4(model, settings):
    """4 bits, symmetric by output channel, or by block of BLOCK inputs where the operator sums over one axis. A convolution's windows
    are shorter than a block."""

    def store(values, weight):
        if settings["granularity"] == "block" and weight.block is not None:
            return _by_block(values, weight.block)
        return _symmetric(values, 7, ml_dtypes.int4, weight.channels)

    return _replaced(model, store, _OPSET_OF_OTHER_TYPES)


def linear(model, settings):
    """`sweep.runtimes._linear` for weights, and for biases as a whole."""
    bits = settings["bits"]
    kind = {4: ml_dtypes.uint4, 8: np.uint8, 16: np.uint16}[bits]

    def store(values, weight):
        axis = weight.channels if settings["granularity"] == "channel" else None
        found = _linear.quantize(values, bits, axis, settings["rounding"])
        shape = [1] * values.ndim
        if axis is not None:
            shape[axis] = -1
        attributes = {} if axis is None else {"axis": axis}
        return _Stored(found.levels.astype(kind), found.scale, found.least.reshape(shape), attributes)

    return _replaced(model, store, OPSET_OF_CHANNELS if bits == 8 else _OPSET_OF_OTHER_TYPES, biases=True)


def _symmetric(values, most, kind, axis):
    others = tuple(i for i in range(values.ndim) if i != axis)
    scale = _scale(np.abs(values).max(axis=others, keepdims=True), most)
    return _Stored(np.clip(np.rint(values / scale), -most, most).astype(kind), scale.ravel(), None, {"axis": axis})


def _by_block(values, axis):
    """A scale for every BLOCK values along an axis, the last of which may be fewer."""
    starts = np.arange(0, values.shape[axis], BLOCK)
    scale = _scale(np.maximum.reduceat(np.abs(values), starts, axis=axis), 7)
    each = np.repeat(scale, BLOCK, axis=axis).take(np.arange(values.shape[axis]), axis=axis)
    integers = np.clip(np.rint(values / each), -7, 7).astype(ml_dtypes.int4)
    return _Stored(integers, scale, None, {"axis": axis, "block_size": BLOCK})


def _scale(largest, most):
    return np.where(largest > 0, largest / most, 1).astype(np.float32)


def _replaced(model, store, opset, biases=False):
    """The model with its weights as `store` of (values, Weight) has them. Raises ValueError where its operators have no such version."""
    model = of_version(model, opset)
    graph, kept = model.graph, {}
    found = list(weighted(model)) + (list(_biases(model)) if biases else [])
    first, after = [], {}
    for weight in found:
        key = (weight.tensor.name, weight.channels, weight.block)
        if key not in kept:
            name = "{}_stored_{}".format(weight.tensor.name, len(kept))
            kept[key] = name, store(numpy_helper.to_array(weight.tensor), weight)
            graph.initializer.extend(_initializers(*kept[key]))
            if not _gathers_integers(weight.node, kept[key][1]):
                first += _dequantizing(*kept[key], source=name, target=name + "_values")
        name, stored = kept[key]
        if _gathers_integers(weight.node, stored):
            gathered, result = weight.node.output[0] + "_stored", weight.node.output[0]
            last = stored._replace(attributes={"axis": -1} if stored.attributes else {})
            after[gathered] = _dequantizing(name, last, source=gathered, target=result)
            weight.node.input[weight.index], weight.node.output[0] = name, gathered
        else:
            weight.node.input[weight.index] = name + "_values"
    nodes = first + [each for node in graph.node for each in [node, *after.get(node.output[0], [])]]
    nodes = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    _drop_unread(graph)
    checker.check_model(model, full_check=True)
    return model


def of_version(model, opset):
    """The model in at least this version of the operators."""
    has = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if has < opset:
        try:
            model = version_converter.convert_version(model, opset)
        except Exception as error:  # the converter's errors have no common root
            raise ValueError("opset {} can't be brought to {}: {}".format(has, opset, " ".join(str(error).split()))) from error
    if opset >= _OPSET_OF_OTHER_TYPES:
        model.ir_version = max(model.ir_version, _IR_OF_OTHER_TYPES)
    return model


def _gathers_integers(node, stored):
    """Whether only the rows that an embedding looks up need be dequantized: not by block, and nothing gathers 4 bits."""
    return node.op_type == "Gather" and stored.integers.dtype.kind in "iu" and "block_size" not in stored.attributes


def _initializers(name, stored):
    yield numpy_helper.from_array(stored.integers, name)
    yield numpy_helper.from_array(stored.scale, name + "_scale")
    # Zeros are the default by the standard; without them the runtime puts in a scalar and then refuses it.
    yield numpy_helper.from_array(np.zeros(stored.scale.shape, stored.integers.dtype), name + "_zero")
    if stored.least is not None:
        yield numpy_helper.from_array(stored.least, name + "_least")


def _dequantizing(name, stored, source, target):
    products = target if stored.least is None else target + "_products"
    inputs = [source, name + "_scale", name + "_zero"]
    nodes = [helper.make_node("DequantizeLinear", inputs, [products], name=products, **stored.attributes)]
    if stored.least is not None:
        nodes.append(helper.make_node("Add", [products, name + "_least"], [target], name=target))
    return nodes


def _drop_unread(graph):
    read = set(_read(graph))
    unread = [tensor.name for tensor in graph.initializer if tensor.name not in read]
    for listed in (graph.initializer, graph.input):  # old files list their constants as inputs too
        for each in [each for each in listed if each.name in unread]:
            listed.remove(each)


def _read(graph):
    """Names that nodes read, in bodies too, or that the graph gives."""
    yield from (output.name for output in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            yield from _read(attribute.g)


def _biases(model):
    constants = _constants(model.graph)
    for node in model.graph.node:
        index = _BIAS.get(node.op_type)
        if index is not None and len(node.input) > index and node.input[index] in constants:
            yield Weight(node, index, constants[node.input[index]], None, None)


def _second(channels, block):
    """Of an operator that reads a weight as its second input."""
    return lambda node, constants: [(1, channels, block)] if node.input[1] in constants else []


def _matmul(node, constants):
    weight = constants.get(node.input[1])
    return [(1, len(weight.dims) - 1, len(weight.dims) - 2)] if weight is not None and len(weight.dims) > 1 else []


def _gemm(node, constants):
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return _second(*((0, 1) if transposed else (1, 0)))(node, constants)


def _embedding(node, constants):
    table = constants.get(node.input[0])
    rows = not any(attribute.name == "axis" and attribute.i for attribute in node.attribute)
    return [(0, 1, 1)] if table is not None and len(table.dims) == 2 and rows else []


def _recurrent(node, constants):
    return [(index, 1, 2) for index in (1, 2) if node.input[index] in constants]  # (directions, gates x units, inputs)


def _loop(node, constants):
    """What a loop takes in and its body reads as a weight: converters write recurrent layers so."""
    body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    taken = {each.name: index for index, (each, given) in enumerate(zip(body.input, node.input)) if given in constants}
    inner = _weights(body, {name: constants[node.input[index]] for name, index in taken.items()})
    return [(taken[weight.node.input[weight.index]], weight.channels, weight.block) for weight in inner]


def _nowhere(_node, _constants):
    return []


_PLACES = {
    "Conv": _second(0, None), "Gemm": _gemm, "MatMul": _matmul, "Gather": _embedding, "LSTM": _recurrent, "GRU": _recurrent,
    "Loop": _loop, "Scan": _loop,
}
_BIAS = {"Conv": 2, "Gemm": 2, "LSTM": 3, "GRU": 3}
