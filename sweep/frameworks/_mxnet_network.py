"""A neutral layer list as a Gluon block, and its weights in the canonical layout."""

import mxnet as mx
import numpy as np
from mxnet import gluon

from sweep import initial
from sweep.frameworks import _mxnet_blocks as blocks
from sweep.frameworks._weights import checked
from sweep.layers import parameters, shapes


class Network:
    """A network's blocks by layer, and two graphs over them: `forward` is the network, `frozen` keeps its batch norms in inference mode
    also where it is recorded for training."""

    def __init__(self, layers, recipe, dtype, context):
        self.layers, self.dtype, self.context = layers, dtype, context
        self.kinds = {layer["name"]: layer["kind"] for layer in layers}
        sizes = shapes(layers)
        self.parts = {layer["name"]: blocks.part(layer, recipe, dtype, *(sizes[name] for name in layer["inputs"])) for layer in layers}
        self.forward, self.frozen = Graph(layers, self.parts, False), Graph(layers, self.parts, True)
        norms = [(self.parts[layer["name"]], layer["momentum"]) for layer in layers if layer["kind"] == "batch_norm"]
        self._moving = [(statistic, momentum) for norm, momentum in norms for statistic in (norm.running_mean, norm.running_var)]
        self._blends = recipe != "defaults"

    def moving_statistics(self):
        """Copies of the batch norms' moving statistics; a training pass writes over them when it goes back."""
        return [statistic.data().copy() for statistic, _momentum in self._moving]

    def restore(self, statistics):
        """Undo what a training pass did to the moving statistics since they were copied."""
        for (statistic, _momentum), old in zip(self._moving, statistics):
            statistic.set_data(old)

    def blend(self, statistics):
        """After a training pass: make the moving statistics of those before it and the batch's, unless MXNet did (`defaults`)."""
        if self._blends:
            for (statistic, momentum), old in zip(self._moving, statistics):
                statistic.set_data(momentum * old + (1 - momentum) * statistic.data())

    def trained(self):
        """The parameters that are trained, by canonical name."""
        held = {name: self.parameter(name) for name in parameters(self.layers)}
        return {name: parameter for name, parameter in held.items() if parameter.grad_req != "null"}

    def parameter(self, name):
        """The parameter that holds a canonical one."""
        layer, _, parameter = name.rpartition("/")
        return getattr(blocks.holder(self.parts[layer]), blocks.ATTRIBUTE[self.kinds[layer]][parameter])


class Graph(gluon.HybridBlock):
    """Inputs as the contract has them to logits (N, classes). Inside, the channel is axis 1 of images and of sequences."""

    def __init__(self, layers, parts, frozen):
        super().__init__()
        self.layers, self.frozen = layers, frozen
        for name, part in parts.items():
            self.register_child(part, name)

    def hybrid_forward(self, F, inputs):
        return self.outputs(inputs)[self.layers[-1]["name"]]

    def outputs(self, inputs):
        """The output of every layer by name, in the inner layout."""
        values = {}
        for layer in self.layers:
            part = self._children[layer["name"]]
            if layer["kind"] == "batch_norm":
                part.frozen = self.frozen
            values[layer["name"]] = part(*([values[name] for name in layer["inputs"]] or [inputs]))
        return values


def build(layers, recipe, seed, dtype, context):
    """A freshly initialised Network. The numbers come from MXNet's generator unless the recipe is `identical`."""
    network = Network(layers, recipe, dtype, context)
    mx.random.seed(seed)
    network.forward.cast(dtype)
    network.forward.initialize(ctx=context)
    for graph in (network.forward, network.frozen):
        graph.hybridize()
    if recipe == "matched":
        set_weights(network, _drawn(layers))
    if recipe == "identical":
        set_weights(network, initial.weights(layers, seed))
    return network


def _drawn(layers):
    initializers = {layer["name"]: layer["initializer"] for layer in layers if "initializer" in layer}
    found = initial.constants(layers)
    for name, shape in parameters(layers).items():
        if name not in found:
            found[name] = _DRAW[initializers[name.rpartition("/")[0]]](shape)
    return found


def _glorot_uniform(shape):
    limit = np.sqrt(6.0 / sum(initial.fans(shape)))
    return mx.nd.random.uniform(-limit, limit, shape).asnumpy()


def _he_normal(shape):
    deviation = np.sqrt(2.0 / initial.fans(shape)[0]) / initial.TRUNCATED_DEVIATION
    drawn = mx.nd.random.normal(0, 1, shape).asnumpy()
    while np.abs(drawn).max() > 2:
        drawn = np.where(np.abs(drawn) > 2, mx.nd.random.normal(0, 1, shape).asnumpy(), drawn)
    return deviation * drawn


_DRAW = {
    "glorot_uniform": _glorot_uniform,
    "he_normal": _he_normal,
    "uniform": lambda shape: mx.nd.random.uniform(-0.05, 0.05, shape).asnumpy(),
}


def count_parameters(network):
    """What the blocks hold, constants apart; the two biases of an lstm, of which only the sum is a parameter of the list, count as one."""
    seconds = [blocks.second_bias(network.parts[name]) for name, kind in network.kinds.items() if kind == "lstm"]
    held = [parameter for parameter in network.forward.collect_params().values() if not isinstance(parameter, gluon.Constant)]
    return sum(int(np.prod(parameter.shape)) for parameter in held) - sum(int(np.prod(second.shape)) for second in seconds)


def get_weights(network):
    """Copies of the weights in canonical layout."""
    found = {}
    for name in parameters(network.layers):
        layer, _, parameter = name.rpartition("/")
        array = network.parameter(name).data().asnumpy()
        if (network.kinds[layer], parameter) == ("lstm", "bias"):
            array = array + blocks.second_bias(network.parts[layer]).data().asnumpy()
        found[name] = canonical(network, name, array)
    return found


def canonical(network, name, array):
    """A parameter, or its gradient, in the canonical layout."""
    kind = network.kinds[name.rpartition("/")[0]]
    if kind != "embedding":
        array = array.transpose(_TO_CANONICAL[array.ndim])
    return np.array(_gates(kind, array), order="C")


def set_weights(network, weights):
    """The reverse. Raises ValueError that names the parameter where one is missing, unknown or of another shape."""
    for name, array in checked(network.layers, weights).items():
        layer, _, parameter = name.rpartition("/")
        kind = network.kinds[layer]
        array = _gates(kind, array)
        if kind != "embedding":
            array = array.transpose(_FROM_CANONICAL[array.ndim])
        network.parameter(name).set_data(mx.nd.array(array, network.context, network.dtype))
        if (kind, parameter) == ("lstm", "bias"):
            second = blocks.second_bias(network.parts[layer])
            second.set_data(mx.nd.zeros(second.shape, network.context, network.dtype))


def _gates(kind, array):
    """MXNet has a gru's gates as r, z, h; to swap the two goes both ways."""
    if kind != "gru":
        return array
    first, second, candidate = np.split(array, 3, axis=-1)
    return np.concatenate([second, first, candidate], axis=-1)


# Axes by rank: biases, kernels (out, in) of dense and recurrent layers, and kernels (out, in, width) and (out, in, height, width).
_TO_CANONICAL = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0)}
_FROM_CANONICAL = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1)}
