"""What a .tflite file holds, read from its FlatBuffer: the types of its weights, its loops, its signature."""

from collections import namedtuple

from ai_edge_litert import schema_py_generated as schema

_TYPES = {value: name.lower() for name, value in vars(schema.TensorType).items() if not name.startswith("_")}
_OPERATORS = {value: name for name, value in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
_WEIGHTS = {
    "CONV_2D": [1], "DEPTHWISE_CONV_2D": [1], "TRANSPOSE_CONV": [1], "CONV_3D": [1], "FULLY_CONNECTED": [1], "BATCH_MATMUL": [1],
    "EMBEDDING_LOOKUP": [1], "GATHER": [0], "UNIDIRECTIONAL_SEQUENCE_LSTM": list(range(1, 9)),
}
"""Which inputs of an operator may be weights."""
_STORED = {
    "float16": "float16", "dynamic_int8": "int8", "static_int8": "int8", "int16x8": "int8", "weight_only_int8": "int8",
    "weight_only_int4": "int4",
}
_ACTIVATIONS = {"static_int8": "int8", "int16x8": "int16"}

Weight = namedtuple("Weight", "operator type scales")


def model(content):
    """The root of a file's tables."""
    return schema.Model.GetRootAs(content, 0)


def has_loop(root):
    """Whether an operator repeats a part of the graph that the file has as a graph of its own."""
    return any(_operator(root, operator) == "WHILE" for graph in _graphs(root) for operator in _operators(graph))


def is_quantized(root):
    """Whether any weight is of a type that a row stores it as."""
    return any(weight.type in _STORED.values() for weight in weights(root))


def signature(root):
    """The key of the first signature and the name of its first input, None where there is none."""
    if not root.SignatureDefsLength() or not root.SignatureDefs(0).InputsLength():
        return None
    found = root.SignatureDefs(0)
    return found.SignatureKey().decode(), found.Inputs(0).Name().decode()


def check(source, root, row, granularity):
    """Raise ValueError that names the source where a row quantized nothing, or gave the parts of a weight scales of their own where the
    granularity is `tensor`."""
    stored = [weight for weight in weights(root) if weight.type == _STORED[row]]
    if not (_has_activations(root, _ACTIVATIONS[row]) if row in _ACTIVATIONS else stored):
        raise ValueError("{}: {} quantized nothing".format(source, row))
    split = sorted({weight.operator for weight in stored if weight.scales > 1})
    if granularity == "tensor" and split:
        raise ValueError("{}: {} has no scale per tensor for {}".format(source, row, " and ".join(split)))


def weights(root):
    """The constant weights of convolutions, matrix products and tables, as they are stored: before they are turned back to float32."""
    found = []
    for graph in _graphs(root):
        dequantized = {
            operator.Outputs(0): operator.Inputs(0) for operator in _operators(graph) if _operator(root, operator) == "DEQUANTIZE"
        }
        for operator in _operators(graph):
            name = _operator(root, operator)
            for position in _WEIGHTS.get(name, []):
                index = operator.Inputs(position)
                tensor = graph.Tensors(dequantized.get(index, index)) if index >= 0 else None
                if tensor is not None and _is_constant(root, tensor):
                    quantization = tensor.Quantization()
                    found.append(Weight(name, _TYPES[tensor.Type()], quantization.ScaleLength() if quantization else 0))
    return found


def _has_activations(root, kind):
    """Whether what is computed while the model runs is of a type anywhere."""
    tensors = (graph.Tensors(index) for graph in _graphs(root) for index in range(graph.TensorsLength()))
    return any(_TYPES[tensor.Type()] == kind and not _is_constant(root, tensor) for tensor in tensors)


def _is_constant(root, tensor):
    """Whether the file has a tensor's values, among its tables or behind them."""
    buffer = root.Buffers(tensor.Buffer())
    return bool(buffer.DataLength() or buffer.Size())


def _graphs(root):
    return [root.Subgraphs(number) for number in range(root.SubgraphsLength())]


def _operators(graph):
    return [graph.Operators(number) for number in range(graph.OperatorsLength())]


def _operator(root, operator):
    code = root.OperatorCodes(operator.OpcodeIndex())
    return _OPERATORS[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
