"""Faults in an ONNX file: weights, attributes and operators of its graph."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .converted import Unsuitable
from .weighted import Weighted, belongs

_PRODUCTS = {"Conv": "conv", "Gemm": "dense", "MatMul": "dense"}


class File:
    """A graph and its constants."""

    suffix = ".onnx"

    def __init__(self, path):
        self.model = onnx.load(str(path))
        self.graph = self.model.graph
        self.made = {name: node for node in self.graph.node for name in node.output}

    def content(self):
        return self.model.SerializeToString()

    def constant(self, name):
        for tensor in self.graph.initializer:
            if tensor.name == name:
                return tensor
        raise Unsuitable

    def array(self, name):
        return numpy_helper.to_array(self.constant(name))

    def store(self, name, array):
        """Under the same name, so that what else reads it gets it too."""
        before = self.constant(name)
        before.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array, numpy_helper.to_array(before).dtype), name))

    def replace(self, name, array):
        """The name of another constant in its place."""
        fresh = f"{name}_changed"
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), fresh))
        return fresh

    def nodes(self, *kinds):
        return [node for node in self.graph.node if node.op_type in kinds]

    def readers(self, name):
        return [node for node in self.graph.node if name in node.input]

    def weighted(self, network, layer):
        """The parameters of a convolution or dense layer."""
        canonical = network.weights[f"{layer['name']}/kernel"]
        for node in self.nodes(*_PRODUCTS):
            if layer["kind"].startswith(_PRODUCTS[node.op_type]):
                try:
                    found = self._weighted(node, layer, canonical)
                except Unsuitable:
                    continue
                values = found.kernel if found.scale is None else found.kernel.astype(np.float64) * found.scale
                if belongs(values, canonical):
                    return found
        raise Unsuitable

    def node_of(self, network, layer):
        """The node of a convolution or dense layer."""
        canonical = network.weights[f"{layer['name']}/kernel"]
        for node in self.nodes(*_PRODUCTS):
            try:
                found = self._weighted(node, layer, canonical)
            except Unsuitable:
                continue
            if belongs(found.kernel if found.scale is None else found.kernel.astype(np.float64) * found.scale, canonical):
                return node
        raise Unsuitable

    def _weighted(self, node, layer, canonical):
        name, scale_name = node.input[1], None
        if name in self.made and self.made[name].op_type == "DequantizeLinear":
            name, scale_name = self.made[name].input[:2]
        raw = self.array(name)
        transposed = node.op_type == "Conv" or any(each.name == "transB" and each.i for each in node.attribute)

        def inner(array):
            if node.op_type == "Conv":
                return np.moveaxis(np.moveaxis(array, 1, -1), 0, -1)
            return array.T if transposed else array

        def outer(array):
            if node.op_type == "Conv":
                return np.moveaxis(np.moveaxis(array, -1, 0), -1, 1)
            return array.T if transposed else array

        kernel = inner(raw)
        if kernel.size != canonical.size:
            raise Unsuitable
        kernel, inside = kernel.reshape(canonical.shape), kernel.shape
        bias_name, bias_of = self._bias(node)

        def store(kernel, scale, bias):
            self.store(name, outer(np.asarray(kernel).reshape(inside)))
            if scale_name is not None:
                self.store(scale_name, scale.reshape(self.array(scale_name).shape))
            if bias_name is not None:
                self.store(bias_name, bias.reshape(self.array(bias_name).shape))

        scale = None if scale_name is None else np.atleast_1d(self.array(scale_name))
        bias = None if bias_name is None else self.array(bias_name).ravel()
        return Weighted(layer, kernel, scale, bias if bias_of(bias, canonical) else None, store)

    def _bias(self, node):
        """Name of the bias, of the node itself or of the addition that alone reads it."""

        def fits(bias, canonical):
            return bias is not None and bias.size == canonical.shape[-1]

        if len(node.input) > 2:
            return self._named(node.input[2]), fits
        reading = self.readers(node.output[0])
        while len(reading) == 1 and reading[0].op_type in ("Squeeze", "QuantizeLinear", "DequantizeLinear", "Transpose"):
            reading = self.readers(reading[0].output[0])
        if len(reading) == 1 and reading[0].op_type == "Add":
            for name in reading[0].input:
                found = self._named(name)
                if found is not None:
                    return found, fits
        return None, fits

    def _named(self, name):
        if name in self.made and self.made[name].op_type == "DequantizeLinear":
            name = self.made[name].input[0]
        return name if any(tensor.name == name for tensor in self.graph.initializer) else None

    def insert_after(self, name, make):
        """Nodes between a tensor and what reads it: `make(name)` gives (nodes, constants, new name)."""
        readers = self.readers(name)
        nodes, constants, fresh = make(name)
        position = min(list(self.graph.node).index(node) for node in readers)
        for node in readers:
            for at, each in enumerate(node.input):
                if each == name:
                    node.input[at] = fresh
        for offset, node in enumerate(nodes):
            self.graph.node.insert(position + offset, node)
        self.graph.initializer.extend(constants)

    def bypass(self, node):
        """What reads the node reads its first input instead."""
        for reader in self.readers(node.output[0]):
            for at, each in enumerate(reader.input):
                if each == node.output[0]:
                    reader.input[at] = node.input[0]
        if node.output[0] in [value.name for value in self.graph.output]:
            raise Unsuitable
        self.graph.node.remove(node)

    def set_attribute(self, node, name, value):
        for attribute in list(node.attribute):
            if attribute.name == name:
                node.attribute.remove(attribute)
        node.attribute.append(helper.make_attribute(name, value))

    def attribute(self, node, name, default=None):
        for attribute in node.attribute:
            if attribute.name == name:
                return helper.get_attribute_value(attribute)
        return default

    def of_kind(self, network, layer, kinds, *operators):
        """The layer's node, where the file has one operator for each layer of these kinds, in their order."""
        nodes, layers = self.nodes(*operators), network.kinds(*kinds)
        if len(nodes) != len(layers):
            raise Unsuitable
        return nodes[layers.index(layer)]


def _relu(file, network, layer):
    return file.of_kind(network, layer, ("relu",), "Relu")


def activation_replaced(random, file, network, layer):
    node = _relu(file, network, layer)
    kind = str(random.choice(["LeakyRelu", "Tanh", "Sigmoid", "Softplus", "Elu", "Identity", "Abs"]))
    node.op_type = kind
    if kind == "LeakyRelu":
        file.set_attribute(node, "alpha", float(random.choice([0.01, 0.1, 0.2, 0.3, random.uniform(0.05, 0.5)])))
    return [layer["name"]]


def activation_capped(random, file, network, layer):
    node = _relu(file, network, layer)
    dtype = np.float16 if any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in file.graph.initializer) else np.float32
    bounds = [numpy_helper.from_array(np.array(value, dtype), f"bound{value}") for value in (0, 6)]
    file.graph.initializer.extend(bounds)
    node.op_type = "Clip"
    node.input.extend([bound.name for bound in bounds])
    return [layer["name"]]


def padding_on_the_other_side(random, file, network, layer):
    """As if all of it came before, or as if the sides were swapped."""
    node = file.node_of(network, layer)
    pads = list(file.attribute(node, "pads", [0, 0, 0, 0]))
    half = len(pads) // 2
    if file.attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"") or not any(pads):
        raise Unsuitable
    before, after = pads[:half], pads[half:]
    if before == after:
        changed = [one + other for one, other in zip(before, after, strict=True)] + [0] * half
    else:
        changed = after + before
    file.set_attribute(node, "pads", changed)
    return [layer["name"]]


def pool_counts_its_padding(_random, file, network, layer):
    node = file.of_kind(network, layer, ("average_pool",), "AveragePool")
    if not any(file.attribute(node, "pads", [])):
        raise Unsuitable
    if not _without_correction(file, node):
        file.set_attribute(node, "count_include_pad", 1)
    return [layer["name"]]


def _without_correction(file, node):
    """Take away what makes up for the padding in a pool's output, by the share of each window that is none. Returns whether it was there."""
    name = node.output[0]
    while len(file.readers(name)) == 1 and file.readers(name)[0].op_type in ("QuantizeLinear", "DequantizeLinear"):
        name = file.readers(name)[0].output[0]
    corrections = [reader for reader in file.readers(name) if reader.op_type in ("Div", "Mul")]
    for correction in corrections:
        file.bypass(correction)
    return bool(corrections)


def other_pool(_random, file, network, layer):
    mine, other = {"max_pool": ("MaxPool", "AveragePool"), "average_pool": ("AveragePool", "MaxPool")}[layer["kind"]]
    node = file.of_kind(network, layer, (layer["kind"],), mine)
    _without_correction(file, node)
    node.op_type = other
    for attribute in list(node.attribute):
        if attribute.name in ("storage_order", "count_include_pad", "dilations"):
            node.attribute.remove(attribute)
    return [layer["name"]]


def _normalization(file, network):
    layer = network.kinds("normalize")
    if not layer:
        raise Unsuitable
    subtraction = next((node for node in file.nodes("Sub")), None)
    if subtraction is None:
        raise Unsuitable
    following = file.readers(subtraction.output[0])
    if len(following) != 1 or following[0].op_type not in ("Div", "Mul"):
        raise Unsuitable
    return layer[0], subtraction, following[0]


def normalization_left_out(random, file, network, _layer):
    layer, subtraction, division = _normalization(file, network)
    which = random.randint(3)
    if which != 1:
        file.bypass(subtraction)
    if which != 0:
        file.bypass(division)
    return [layer["name"]]


def _image_name(file):
    return file.graph.input[0].name


def inputs_scaled(random, file, network, layer):
    factor = float(random.choice([255, 1 / 255]))

    def make(name):
        constant = numpy_helper.from_array(np.array(factor, np.float32), "input_factor")
        return [helper.make_node("Mul", [name, "input_factor"], ["scaled_input"])], [constant], "scaled_input"

    file.insert_after(_image_name(file), make)
    return [layer["name"]]


def inputs_centred(_random, file, network, layer):
    """From -1 to 1."""

    def make(name):
        constants = [numpy_helper.from_array(np.array(value, np.float32), f"input_{value}") for value in (2, 1)]
        nodes = [helper.make_node("Mul", [name, "input_2"], ["doubled"]), helper.make_node("Sub", ["doubled", "input_1"], ["centred"])]
        return nodes, constants, "centred"

    file.insert_after(_image_name(file), make)
    return [layer["name"]]


def blue_first(_random, file, network, layer):
    if layer["shape"][-1] < 2:
        raise Unsuitable

    def make(name):
        order = numpy_helper.from_array(np.arange(layer["shape"][-1])[::-1].astype(np.int64), "channel_order")
        return [helper.make_node("Gather", [name, "channel_order"], ["reordered"], axis=3)], [order], "reordered"

    file.insert_after(_image_name(file), make)
    return [layer["name"]]


def height_and_width_exchanged(_random, file, network, layer):
    """A transposition to channels first that takes the columns for rows."""
    if layer["shape"][0] != layer["shape"][1]:
        raise Unsuitable
    node = next((node for node in file.nodes("Transpose") if node.input[0] == _image_name(file)), None)
    if node is None or list(file.attribute(node, "perm")) != [0, 3, 1, 2]:
        raise Unsuitable
    file.set_attribute(node, "perm", [0, 3, 2, 1])
    return [layer["name"]]


def reshaped_for_transposed(_random, file, network, layer):
    """The memory of channels last taken for channels first."""
    height, width, channels = layer["shape"]
    node = next((node for node in file.nodes("Transpose") if node.input[0] == _image_name(file)), None)
    if node is None or channels < 2:
        raise Unsuitable
    shape = numpy_helper.from_array(np.array([-1, channels, height, width], np.int64), "first_shape")
    file.graph.initializer.append(shape)
    node.op_type = "Reshape"
    del node.attribute[:]
    node.input.append("first_shape")
    return [layer["name"]]


def flattened_channels_first(_random, file, network, layer):
    """The transposition before a flatten left out."""
    node = next((node for node in file.nodes("Transpose") if list(file.attribute(node, "perm")) == [0, 2, 3, 1]
                 and any(reader.op_type in ("Reshape", "Flatten") for reader in file.readers(node.output[0]))), None)
    shape = dict(zip([each["name"] for each in network.layers], network.layers, strict=True))
    if node is None or layer["name"] not in shape:
        raise Unsuitable
    file.bypass(node)
    return [layer["name"], *[each["name"] for each in network.layers if layer["name"] in each["inputs"]]]


def gates_in_another_order(random, file, network, layer):
    node = file.of_kind(network, layer, (layer["kind"],), layer["kind"].upper())
    gates, units = (4, layer["units"]) if layer["kind"] == "lstm" else (3, layer["units"])
    order = random.permutation(gates)
    if (order == np.arange(gates)).all():
        raise Unsuitable
    for at, parts in ((1, 1), (2, 1), (3, 2)):
        array = file.array(node.input[at])
        blocks = array.reshape(1, parts, gates, units, *array.shape[2:])[:, :, order]
        file.store(node.input[at], blocks.reshape(array.shape))
    return [layer["name"]]


def reset_before(_random, file, network, layer):
    node = file.of_kind(network, layer, ("gru",), "GRU")
    file.set_attribute(node, "linear_before_reset", 0)
    return [layer["name"]]


def bias_left_out(_random, file, network, layer):
    node = file.of_kind(network, layer, (layer["kind"],), layer["kind"].upper())
    array = file.array(node.input[3]).copy()
    half = array.shape[1] // 2
    array[:, :half] = 0
    file.store(node.input[3], array)
    return [layer["name"]]


def backwards(_random, file, network, layer):
    node = file.of_kind(network, layer, (layer["kind"],), layer["kind"].upper())
    file.set_attribute(node, "direction", "reverse")
    return [layer["name"]]


def other_gate_function(random, file, network, layer):
    node = file.of_kind(network, layer, (layer["kind"],), layer["kind"].upper())
    functions = ["HardSigmoid", "Tanh"] + (["Tanh"] if layer["kind"] == "lstm" else [])
    file.set_attribute(node, "activations", functions)
    return [layer["name"]]


def concatenated_in_another_order(_random, file, network, layer):
    node = file.of_kind(network, layer, ("concatenate",), "Concat")
    names = list(node.input)
    names = names[1:] + names[:1]
    del node.input[:]
    node.input.extend(names)
    return [layer["name"]]


def added_twice(random, file, network, layer):
    additions = [node for node in file.nodes("Add") if all(name in file.made or name == _image_name(file) for name in node.input)]
    layers = network.kinds("add")
    if len(additions) != len(layers):
        raise Unsuitable
    node = additions[layers.index(layer)]
    node.input[int(random.randint(2))] = node.input[int(random.randint(2))]
    if node.input[0] != node.input[1]:
        raise Unsuitable
    return [layer["name"]]


def scale_of_an_activation(random, file, network, layer):
    """A tensor that is turned back from integers by another scale than it was made by."""
    nodes = [node for node in file.nodes("DequantizeLinear") if node.input[0] in file.made
             and file.made[node.input[0]].op_type == "QuantizeLinear"]
    if not nodes:
        raise Unsuitable
    node = nodes[random.randint(len(nodes) - 1)]
    node.input[1] = file.replace(node.input[1], file.array(node.input[1]) * np.float32(random.choice([0.5, 2, 3])))
    return node.output[0]


_RECURRENT = ("lstm", "gru")
FORMS = [
    ("activation", ("relu",), activation_replaced),
    ("activation", ("relu",), activation_capped),
    ("padding_side", ("conv2d", "conv1d"), padding_on_the_other_side),
    ("pool_edge_count", ("average_pool",), pool_counts_its_padding),
    ("pool_kind", ("max_pool", "average_pool"), other_pool),
    ("normalization", ("normalize",), normalization_left_out),
    ("input_scale", ("input",), inputs_scaled),
    ("input_scale", ("input",), inputs_centred),
    ("channel_order", ("input",), blue_first),
    ("channel_order", ("input",), reshaped_for_transposed),
    ("layout", ("input",), height_and_width_exchanged),
    ("flatten_order", ("flatten",), flattened_channels_first),
    ("gate_order", _RECURRENT, gates_in_another_order),
    ("missing_bias", _RECURRENT, bias_left_out),
    ("reset_after", ("gru",), reset_before),
    ("reversed_sequence", _RECURRENT, backwards),
    ("activation", _RECURRENT, other_gate_function),
    ("concatenation_order", ("concatenate",), concatenated_in_another_order),
    ("branch", ("add",), added_twice),
]
