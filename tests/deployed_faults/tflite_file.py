"""Faults in a TFLite file: buffers, quantization parameters and operators of its flatbuffer."""

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from .converted import Unsuitable
from .weighted import Weighted, belongs

_NAMES = {value: name for name, value in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
_DTYPES = {schema.TensorType.FLOAT32: np.float32, schema.TensorType.FLOAT16: np.float16, schema.TensorType.INT8: np.int8,
           schema.TensorType.INT32: np.int32, schema.TensorType.INT64: np.int64, schema.TensorType.UINT8: np.uint8}
_PRODUCTS = {"CONV_2D": "conv", "FULLY_CONNECTED": "dense"}
_ACTIVATION = schema.ActivationFunctionType


class File:
    """A model of one subgraph."""

    suffix = ".tflite"

    def __init__(self, path):
        self.model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
        self.graph = self.model.subgraphs[0]

    def content(self):
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def kind(self, operator):
        code = self.model.operatorCodes[operator.opcodeIndex]
        return _NAMES[max(code.builtinCode, code.deprecatedBuiltinCode)]

    def operators(self, *kinds):
        return [operator for operator in self.graph.operators if self.kind(operator) in kinds]

    def tensor(self, index):
        return self.graph.tensors[index]

    def array(self, index):
        """A constant, in its own dtype. Where it is dequantized from a smaller float, that one."""
        tensor = self.tensor(index)
        data = self.model.buffers[tensor.buffer].data
        if data is None or not len(data):
            raise Unsuitable
        return np.frombuffer(np.asarray(data, np.uint8).tobytes(), _DTYPES[tensor.type]).reshape(tensor.shape)

    def store(self, index, array):
        tensor = self.tensor(index)
        content = np.ascontiguousarray(array, _DTYPES[tensor.type])
        self.model.buffers[tensor.buffer].data = np.frombuffer(content.tobytes(), np.uint8)

    def constant(self, index):
        """The index of the constant that a tensor is, or is dequantized from."""
        for operator in self.operators("DEQUANTIZE"):
            if operator.outputs[0] == index:
                return operator.inputs[0]
        return index

    def weighted(self, network, layer):
        return self._found(network, layer)[0]

    def operator_of(self, network, layer):
        return self._found(network, layer)[1]

    def _found(self, network, layer):
        canonical = network.weights[f"{layer['name']}/kernel"]
        for operator in self.operators(*_PRODUCTS):
            if layer["kind"].startswith(_PRODUCTS[self.kind(operator)]):
                try:
                    found = self._weighted(operator, layer, canonical)
                except Unsuitable:
                    continue
                if belongs(found.kernel if found.scale is None else found.kernel.astype(np.float64) * found.scale, canonical):
                    return found, operator
        raise Unsuitable

    def _weighted(self, operator, layer, canonical):
        index = self.constant(operator.inputs[1])
        raw, tensor = self.array(index), self.tensor(index)
        kernel = np.moveaxis(raw, 0, -1)
        if kernel.size != canonical.size:
            raise Unsuitable
        inside, kernel = kernel.shape, kernel.reshape(canonical.shape)
        quantized = tensor.quantization is not None and tensor.quantization.scale is not None and len(tensor.quantization.scale)
        bias_index = self.constant(operator.inputs[2]) if len(operator.inputs) > 2 and operator.inputs[2] >= 0 else None

        def store(kernel, scale, bias):
            self.store(index, np.moveaxis(np.asarray(kernel).reshape(inside), -1, 0))
            if scale is not None:
                tensor.quantization.scale = np.asarray(scale, np.float32)
            if bias_index is not None:
                self.store(bias_index, bias)

        bias = None if bias_index is None else self.array(bias_index)
        scale = np.asarray(tensor.quantization.scale) if quantized else None
        return Weighted(layer, kernel, scale, bias, store, bias is not None and bias.dtype == np.int32)


def activation_of_a_product(random, file, network, layer):
    """What is fused to a convolution or dense layer: nothing, or relu6."""
    source = network.by_name[layer["inputs"][0]]
    while source["kind"] in ("batch_norm",):
        source = network.by_name[source["inputs"][0]]
    if source["kind"] not in ("conv2d", "dense"):
        raise Unsuitable
    operator = file.operator_of(network, source)
    if operator.builtinOptions.fusedActivationFunction != _ACTIVATION.RELU:
        raise Unsuitable
    operator.builtinOptions.fusedActivationFunction = random.choice([_ACTIVATION.NONE, _ACTIVATION.RELU6])
    return [layer["name"]]


def other_pool(_random, file, network, layer):
    mine, other = {"max_pool": ("MAX_POOL_2D", "AVERAGE_POOL_2D"), "average_pool": ("AVERAGE_POOL_2D", "MAX_POOL_2D")}[layer["kind"]]
    operators, layers = file.operators(mine), network.kinds(layer["kind"])
    if len(operators) != len(layers):
        raise Unsuitable
    code = schema.OperatorCodeT()
    code.builtinCode, code.deprecatedBuiltinCode, code.version = (getattr(schema.BuiltinOperator, other),) * 2 + (2,)
    file.model.operatorCodes.append(code)
    operators[layers.index(layer)].opcodeIndex = len(file.model.operatorCodes) - 1
    return [layer["name"]]


def padding_on_the_other_side(_random, file, network, layer):
    """The sides of a padding that is an operator of its own swapped, or all of it before."""
    product = file.operator_of(network, layer)
    pad = next((operator for operator in file.operators("PAD", "PADV2") if operator.outputs[0] == product.inputs[0]), None)
    if pad is None:
        raise Unsuitable
    sides = file.array(pad.inputs[1]).copy()
    if not sides.any():
        raise Unsuitable
    if (sides[:, 0] == sides[:, 1]).all():
        sides = np.stack([sides.sum(axis=1), np.zeros(len(sides), sides.dtype)], axis=1)
    else:
        sides = sides[:, ::-1]
    file.store(pad.inputs[1], sides)
    return [layer["name"]]


def normalization_left_out(random, file, network, layer):
    """Its two constants, or one of them, those of no normalisation."""
    subtraction, division = (next(iter(file.operators(kind)), None) for kind in ("SUB", "MUL"))
    if subtraction is None or division is None or file.graph.operators.index(subtraction) > 2:
        raise Unsuitable
    which = random.randint(3)
    if which != 1:
        index = file.constant(subtraction.inputs[1])
        file.store(index, np.zeros_like(file.array(index)))
    if which != 0:
        index = file.constant(division.inputs[1])
        if _DTYPES[file.tensor(index).type] not in (np.float32, np.float16):
            raise Unsuitable
        file.store(index, np.ones_like(file.array(index)))
    return [layer["name"]]


def concatenated_in_another_order(_random, file, network, layer):
    operators = file.operators("CONCATENATION")
    if len(operators) != len(network.kinds("concatenate")):
        raise Unsuitable
    operator = operators[network.kinds("concatenate").index(layer)]
    operator.inputs = list(operator.inputs[1:]) + list(operator.inputs[:1])
    return [layer["name"]]


def added_twice(random, file, network, layer):
    operators, layers = file.operators("ADD"), network.kinds("add")
    if len(operators) != len(layers):
        raise Unsuitable
    operator = operators[layers.index(layer)]
    operator.inputs = [operator.inputs[random.randint(2)]] * 2
    return [layer["name"]]


FORMS = [
    ("activation", ("relu",), activation_of_a_product),
    ("pool_kind", ("max_pool", "average_pool"), other_pool),
    ("padding_side", ("conv2d",), padding_on_the_other_side),
    ("normalization", ("normalize",), normalization_left_out),
    ("concatenation_order", ("concatenate",), concatenated_in_another_order),
    ("branch", ("add",), added_twice),
]
