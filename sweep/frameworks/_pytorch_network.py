"""A neutral layer list as a PyTorch module, and its weights in the canonical layout."""

import math
from collections import Counter

import torch
from torch import nn

from sweep import initial
from sweep.frameworks import _pytorch_parts as parts
from sweep.frameworks._weights import checked
from sweep.layers import BATCH_NORM_STATE, parameters, shapes

KINDS = parts.KINDS
_OUTPUT_NOT_SAVED = ("conv2d", "dense", "batch_norm", "add")  # their gradients don't need their outputs


class Network(nn.Module):
    """Images (N, H, W, C) in [0, 1], or token ids (N, steps), to logits (N, classes)."""

    def __init__(self, layers, recipe):
        super().__init__()
        self.layers = layers
        self.sizes, self.kinds = shapes(layers), {layer["name"]: layer["kind"] for layer in layers}
        self.parts = nn.ModuleDict(
            {layer["name"]: parts.make(layer, recipe, *(self.sizes[name] for name in layer["inputs"])) for layer in layers}
        )
        last_use = {name: layer["name"] for layer in layers for name in layer["inputs"]}
        # (layer, what it reads, what nobody reads afterwards): outputs are dropped early, since predicting holds nothing for gradients.
        self._steps = [
            (layer["name"], layer["inputs"], [name for name in dict.fromkeys(layer["inputs"]) if last_use[name] == layer["name"]])
            for layer in layers
        ]
        readers = Counter(name for layer in layers for name in layer["inputs"])
        for layer, source in ((layer, layer["inputs"][0]) for layer in layers if layer["kind"] == "relu"):
            # What sequences come out as are views.
            owns = self.kinds[source] in _OUTPUT_NOT_SAVED and len(self.sizes[source]) != 2
            self.parts[layer["name"]].may_overwrite = owns and readers[source] == 1

    def forward(self, inputs):
        values = {}
        for name, sources, finished in self._steps:
            values[name] = self.parts[name](*([values[other] for other in sources] or [inputs]))
            for other in finished:
                del values[other]
        return values[name]

    def outputs(self, inputs):
        """The output of every layer by name, in the inner layout."""
        values = {}
        for name, sources, _ in self._steps:
            values[name] = self.parts[name](*([values[other] for other in sources] or [inputs]))
        return values

    def use_biased_statistics(self, biased):
        """Whether the moving variance follows the biased batch variance (True) or PyTorch's own, unbiased one."""
        for part in self.parts.values():
            if isinstance(part, parts.BatchNorm):
                part.biased_statistics = biased

    def cast(self, values):
        """Inputs as the network reads them: images in its dtype, token ids as they are."""
        return values if self.layers[0]["kind"] == "tokens" else values.to(self.dtype)

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    @property
    def device(self):
        return next(self.parameters()).device


def build(layers, recipe, seed, dtype):
    """A freshly initialised Network on the CPU. The numbers come from the framework's generator unless the recipe is `identical`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(layers, recipe)
        if recipe == "matched":
            _initialize(network)
    network = network.to(dtype=getattr(torch, dtype), memory_format=torch.channels_last)
    if recipe == "identical":
        set_weights(network, initial.weights(layers, seed))
    return network


@torch.no_grad()
def _initialize(network):
    initializers = {layer["name"]: layer.get("initializer") for layer in network.layers}
    constants = initial.constants(network.layers)
    for name, shape in parameters(network.layers).items():
        if name in constants:
            _write(network, name, torch.from_numpy(constants[name]))
        else:
            layer, _, parameter = name.rpartition("/")
            _INITIALIZER[initializers[layer]](getattr(network.parts[layer], _attribute(network.kinds[layer], parameter)), shape)


def _glorot_uniform(weight, shape):
    limit = math.sqrt(6 / sum(initial.fans(shape)))
    nn.init.uniform_(weight, -limit, limit)


def _truncated_he_normal(weight, shape):
    deviation = math.sqrt(2 / initial.fans(shape)[0]) / initial.TRUNCATED_DEVIATION
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


_INITIALIZER = {
    "glorot_uniform": _glorot_uniform, "he_normal": _truncated_he_normal,
    "uniform": lambda weight, _shape: nn.init.uniform_(weight, -0.05, 0.05),
}


def count_parameters(network):
    """What the modules hold; the two biases of an lstm, of which only the sum is a parameter of the network, count as one."""
    held = sum(tensor.numel() for tensor in network.state_dict().values())
    return held - sum(part.bias_hh_l0.numel() for part in network.parts.values() if isinstance(part, parts.Lstm))


_ATTRIBUTE = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "mean": "running_mean", "variance": "running_var"}
_GATES_ATTRIBUTE = {
    "kernel": "weight_ih_l0", "recurrent_kernel": "weight_hh_l0", "bias": "bias_ih_l0", "recurrent_bias": "bias_hh_l0"
}


def _attribute(kind, parameter):
    return (_GATES_ATTRIBUTE if kind in ("lstm", "gru") else _ATTRIBUTE)[parameter]


def _to_canonical(kind, tensor):
    """PyTorch has the outputs first and the inputs second in every kernel, and the gates of a gru in the order r, z, h."""
    if kind == "gru":
        tensor = _gates_swapped(tensor)
    return tensor if kind == "embedding" else tensor.permute(_TO_CANONICAL[tensor.ndim])


def _from_canonical(kind, tensor):
    if kind != "embedding":
        tensor = tensor.permute(_FROM_CANONICAL[tensor.ndim])
    return _gates_swapped(tensor) if kind == "gru" else tensor


def _gates_swapped(tensor):
    first, second, third = tensor.chunk(3)
    return torch.cat([second, first, third])


# Axes by rank: biases, matrices, and convolution kernels of one and two dimensions.
_TO_CANONICAL = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0)}
_FROM_CANONICAL = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1)}


def _array(kind, tensor):
    return _to_canonical(kind, tensor.detach()).cpu().numpy().copy(order="C")


def get_weights(network):
    """Copies of the weights in canonical layout."""
    found = {}
    for name in parameters(network.layers):
        layer, _, parameter = name.rpartition("/")
        kind, part = network.kinds[layer], network.parts[layer]
        tensor = getattr(part, _attribute(kind, parameter))
        if kind == "lstm" and parameter == "bias":
            tensor = tensor + part.bias_hh_l0
        found[name] = _array(kind, tensor)
    return found


@torch.no_grad()
def set_weights(network, weights):
    """The reverse. Raises ValueError that names the parameter where one is missing, unknown or of another shape."""
    for name, array in checked(network.layers, weights).items():
        _write(network, name, torch.from_numpy(array.copy()))


def _write(network, name, tensor):
    layer, _, parameter = name.rpartition("/")
    kind, part = network.kinds[layer], network.parts[layer]
    getattr(part, _attribute(kind, parameter)).copy_(_from_canonical(kind, tensor))
    if kind == "lstm" and parameter == "bias":
        part.bias_hh_l0.zero_()


def weight_gradients(network, loss_of):
    """d loss / d weights by canonical name; `loss_of` makes the loss from a function that gives the network's outputs. The network's
    batch norms take the batch's statistics and keep none of them."""
    network.train()
    trained = [name for name in parameters(network.layers) if not name.endswith(BATCH_NORM_STATE)]
    places = [(network.kinds[name.rpartition("/")[0]], *name.rpartition("/")[::2]) for name in trained]
    tensors = [getattr(network.parts[layer], _attribute(kind, parameter)) for kind, layer, parameter in places]
    copies = {name: buffer.clone() for name, buffer in network.named_buffers()}
    gradients = torch.autograd.grad(loss_of(lambda inputs: torch.func.functional_call(network, copies, (inputs,))), tensors)
    return {name: _array(kind, gradient) for name, (kind, _, _), gradient in zip(trained, places, gradients)}
