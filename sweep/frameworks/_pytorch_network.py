"""A neutral layer list as a PyTorch module, and its weights in the canonical layout."""

import math
from collections import Counter

import torch
from torch import nn
from torch.nn import functional

from sweep import initial
from sweep.frameworks._weights import checked
from sweep.layers import parameters, shapes


class Network(nn.Module):
    """Images (N, H, W, C) in [0, 1] to logits (N, classes).

    Inside, images are (N, C, H, W) in the channels_last memory format: a permuted view of what comes in, and the fastest layout.
    """

    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        sizes, kinds = shapes(layers), {layer["name"]: layer["kind"] for layer in layers}
        self.parts = nn.ModuleDict(
            {layer["name"]: _PART[layer["kind"]](layer, *(sizes[name] for name in layer["inputs"])) for layer in layers}
        )
        last_use = {name: layer["name"] for layer in layers for name in layer["inputs"]}
        # (layer, what it reads, what nobody reads afterwards): outputs are dropped early, since predicting holds nothing for gradients.
        self._steps = [
            (layer["name"], layer["inputs"], [name for name in dict.fromkeys(layer["inputs"]) if last_use[name] == layer["name"]])
            for layer in layers
        ]
        readers = Counter(name for layer in layers for name in layer["inputs"])
        for layer, source in ((layer, layer["inputs"][0]) for layer in layers if layer["kind"] == "relu"):
            self.parts[layer["name"]].may_overwrite = readers[source] == 1 and kinds[source] in _OUTPUT_NOT_SAVED

    def forward(self, images):
        values = {}
        for name, inputs, finished in self._steps:
            values[name] = self.parts[name](*([values[other] for other in inputs] or [images]))
            for other in finished:
                del values[other]
        return values[name]

    def outputs(self, images):
        """The output of every layer by name, in the inner layout."""
        values = {}
        for name, inputs, _ in self._steps:
            values[name] = self.parts[name](*([values[other] for other in inputs] or [images]))
        return values

    def use_biased_statistics(self, biased):
        """Whether the moving variance follows the biased batch variance (True) or PyTorch's own, unbiased one."""
        for part in self.parts.values():
            if isinstance(part, BatchNorm):
                part.biased_statistics = biased

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    @property
    def device(self):
        return next(self.parameters()).device


class Input(nn.Module):
    """Channels last outside, the channel as axis 1 inside."""

    def forward(self, images):
        return images.permute(0, 3, 1, 2)


class Flatten(nn.Module):
    """Rows in height-width-channel order, so that canonical dense kernels need a transpose only; in channels_last no value moves."""

    def forward(self, images):
        return images.permute(0, 2, 3, 1).flatten(1)


class Normalize(nn.Module):
    """(x - mean) / std per channel; the constants are no parameters and travel with the layer list."""

    def __init__(self, mean, std, rank):
        super().__init__()
        shape = (-1,) + (1,) * (rank - 1)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64).reshape(shape), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float64).reshape(shape), persistent=False)

    def forward(self, values):
        return (values - self.mean) / self.std


class Conv2d(nn.Conv2d):
    """A convolution whose padding may differ from side to side; only then it is a step of its own."""

    def __init__(self, channels, filters, kernel, stride, padding):
        (top, bottom), (left, right) = padding
        even = top == bottom and left == right
        super().__init__(channels, filters, kernel, stride, padding=(top, left) if even else 0)
        self.edges = None if even else (left, right, top, bottom)

    def forward(self, images):
        return super().forward(functional.pad(images, self.edges) if self.edges else images)


class BatchNorm(nn.Module):
    """As nn.BatchNorm1d and nn.BatchNorm2d, and able to keep the biased variance that other frameworks keep."""

    def __init__(self, channels, epsilon, momentum):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.epsilon, self.new_share, self.biased_statistics = epsilon, 1 - momentum, False

    def forward(self, values):
        biased = self.training and self.biased_statistics
        variance = self.running_var
        if biased:
            # The kernel adds share x variance x n / (n - 1) to what it is given. Given old x n / (n - 1), its result times (n - 1) / n
            # is old + share x variance, without a second pass over the values.
            count = values.numel() // values.shape[1]
            variance = variance * (count / (count - 1))
        result = functional.batch_norm(
            values, self.running_mean, variance, self.weight, self.bias, self.training, self.new_share, self.epsilon
        )
        if biased:
            self.running_var.copy_(variance * ((count - 1) / count))
        return result


class ReLU(nn.Module):
    """Rectifier; while training it writes over its input where nobody else needs that."""

    def __init__(self):
        super().__init__()
        self.may_overwrite = False

    def forward(self, values):
        return functional.relu(values, inplace=self.may_overwrite and self.training)


class Add(nn.Module):
    """Elementwise sum."""

    def forward(self, left, right):
        return left + right


_PART = {
    "input": lambda layer: Input(),
    "normalize": lambda layer, shape: Normalize(layer["mean"], layer["std"], len(shape)),
    "conv2d": lambda layer, shape: Conv2d(shape[-1], layer["filters"], layer["kernel"], layer["stride"], layer["padding"]),
    "dense": lambda layer, shape: nn.Linear(shape[-1], layer["units"]),
    "batch_norm": lambda layer, shape: BatchNorm(shape[-1], layer["epsilon"], layer["momentum"]),
    "relu": lambda layer, shape: ReLU(),
    "max_pool": lambda layer, shape: nn.MaxPool2d(layer["size"], layer["stride"]),
    "average_pool": lambda layer, shape: nn.AvgPool2d(layer["size"], layer["stride"]),
    "flatten": lambda layer, shape: Flatten(),
    "add": lambda layer, left, right: Add(),
}
KINDS = tuple(_PART)
_OUTPUT_NOT_SAVED = ("conv2d", "dense", "batch_norm", "add")  # their gradients don't need their outputs, and these are no views

_ATTRIBUTE = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "mean": "running_mean", "variance": "running_var"}


def build(layers, recipe, seed, dtype):
    """A freshly initialised Network on the CPU. The numbers come from the framework's generator unless the recipe is `identical`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(layers)
        if recipe == "matched":
            _initialize(network)
    network = network.to(dtype=getattr(torch, dtype), memory_format=torch.channels_last)
    if recipe == "identical":
        set_weights(network, initial.weights(layers, seed))
    return network


@torch.no_grad()
def _initialize(network):
    for layer in network.layers:
        if "initializer" in layer:
            part = network.parts[layer["name"]]
            _INITIALIZER[layer["initializer"]](part.weight)
            nn.init.zeros_(part.bias)


def _truncated_he_normal(weight):
    deviation = math.sqrt(2 / weight[0].numel()) / initial.TRUNCATED_DEVIATION
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


_INITIALIZER = {"glorot_uniform": nn.init.xavier_uniform_, "he_normal": _truncated_he_normal}


def _tensor(network, name):
    layer, _, parameter = name.rpartition("/")
    return getattr(network.parts[layer], _ATTRIBUTE[parameter])


def get_weights(network):
    """Copies of the weights in canonical layout."""
    found = {}
    for name in parameters(network.layers):
        array = _tensor(network, name).detach().cpu().numpy()
        found[name] = array.transpose(_TO_CANONICAL[array.ndim]).copy(order="C")
    return found


@torch.no_grad()
def set_weights(network, weights):
    """The reverse. Raises ValueError that names the parameter where one is missing, unknown or of another shape."""
    for name, array in checked(network.layers, weights).items():
        _tensor(network, name).copy_(torch.from_numpy(array.transpose(_FROM_CANONICAL[array.ndim]).copy()))


# Axes by rank: biases, dense kernels (out, in) and convolution kernels (out, in, height, width).
_TO_CANONICAL = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}
_FROM_CANONICAL = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
