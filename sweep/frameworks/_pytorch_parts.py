"""Each kind of neutral layer as a PyTorch module, over the inner layouts.

Images are (N, C, H, W) in the channels_last memory format: a permuted view of what comes in, and the fastest layout. Sequences are
(N, steps, C) and vectors (N, C), as outside.
"""

import torch
from torch import nn
from torch.nn import functional


class Input(nn.Module):
    """Channels last outside, the channel as axis 1 inside."""

    def forward(self, images):
        return images.permute(0, 3, 1, 2)


class Flatten(nn.Module):
    """Rows in height-width-channel order, so that canonical dense kernels need a transpose only; in channels_last no value moves."""

    def forward(self, values):
        return channels_last(values).flatten(1)


class Normalize(nn.Module):
    """(x - mean) / std per channel; the constants are no parameters and travel with the layer list."""

    def __init__(self, mean, std, rank):
        super().__init__()
        shape = (-1, 1, 1) if rank == 3 else (-1,)
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


class Conv1d(nn.Conv1d):
    """The same over the steps of sequences."""

    def __init__(self, channels, filters, kernel, stride, padding):
        before, after = padding
        super().__init__(channels, filters, kernel, stride, padding=before if before == after else 0)
        self.edges = None if before == after else (before, after)

    def forward(self, values):
        values = values.transpose(1, 2)
        return super().forward(functional.pad(values, self.edges) if self.edges else values).transpose(1, 2)


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
        if values.ndim == 3:
            return self._normalized(values.transpose(1, 2)).transpose(1, 2)
        return self._normalized(values)

    def _normalized(self, values):
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


class Lstm(nn.LSTM):
    """PyTorch has two biases, which it adds: unless it `trains_both`, the second is zero and stays so."""

    def __init__(self, channels, units, return_sequences, trains_both):
        super().__init__(channels, units, batch_first=True)
        self.return_sequences = return_sequences
        if not trains_both:
            nn.init.zeros_(self.bias_hh_l0).requires_grad_(False)

    def forward(self, values):
        sequence, _ = super().forward(values)
        return sequence if self.return_sequences else sequence[:, -1]


class Gru(nn.GRU):
    """PyTorch's has the gates of a sigmoid, and the reset after the product."""

    def __init__(self, channels, units, return_sequences):
        super().__init__(channels, units, batch_first=True)
        self.return_sequences = return_sequences

    def forward(self, values):
        sequence, _ = super().forward(values)
        return sequence if self.return_sequences else sequence[:, -1]


class ReLU(nn.Module):
    """Rectifier; while training it writes over its input where nobody else needs that."""

    def __init__(self):
        super().__init__()
        self.may_overwrite = False

    def forward(self, values):
        return functional.relu(values, inplace=self.may_overwrite and self.training)


class MaxPool(nn.Module):
    """Maximum over windows; the padding is less than every number."""

    def __init__(self, size, stride, edges):
        super().__init__()
        self.size, self.stride, self.edges = size, stride, edges

    def forward(self, images):
        if self.edges:
            images = functional.pad(images, self.edges, value=float("-inf"))
        return functional.max_pool2d(images, self.size, self.stride)


class AveragePool(nn.Module):
    """Mean over what a window holds of the image."""

    def __init__(self, size, stride, edges, shape):
        super().__init__()
        self.size, self.stride, self.edges = size, stride, edges
        if edges:
            inside = functional.pad(torch.ones((1, 1, *shape[:2]), dtype=torch.float64), edges)
            self.register_buffer("share", functional.avg_pool2d(inside, size, stride), persistent=False)

    def forward(self, images):
        if not self.edges:
            return functional.avg_pool2d(images, self.size, self.stride)
        return functional.avg_pool2d(functional.pad(images, self.edges), self.size, self.stride) / self.share


class GlobalMaxPool(nn.Module):
    """Maximum over all axes but the channel."""

    def forward(self, values):
        return values.amax((2, 3)) if values.ndim == 4 else values.amax(tuple(range(1, values.ndim - 1)))


class Add(nn.Module):
    """Elementwise sum."""

    def forward(self, left, right):
        return left + right


class Concatenate(nn.Module):
    """Side by side along the channels."""

    def forward(self, *parts):
        return torch.cat(parts, 1 if parts[0].ndim == 4 else -1)


def channels_last(values):
    """The layout outside of values in the inner one."""
    return values.permute(0, 2, 3, 1) if values.ndim == 4 else values


def inner(values):
    """The reverse."""
    return values.permute(0, 3, 1, 2) if values.ndim == 4 else values


def _edges(layer):
    """As functional.pad takes them; None where there are none."""
    (top, bottom), (left, right) = layer["padding"]
    return (left, right, top, bottom) if top or bottom or left or right else None


_PART = {
    "input": lambda layer, recipe: Input(),
    "tokens": lambda layer, recipe: nn.Identity(),
    "normalize": lambda layer, recipe, shape: Normalize(layer["mean"], layer["std"], len(shape)),
    "conv2d": lambda layer, recipe, shape: Conv2d(shape[-1], layer["filters"], layer["kernel"], layer["stride"], layer["padding"]),
    "conv1d": lambda layer, recipe, shape: Conv1d(shape[-1], layer["filters"], layer["kernel"], layer["stride"], layer["padding"]),
    "dense": lambda layer, recipe, shape: nn.Linear(shape[-1], layer["units"]),
    "batch_norm": lambda layer, recipe, shape: BatchNorm(shape[-1], layer["epsilon"], layer["momentum"]),
    "embedding": lambda layer, recipe, shape: nn.Embedding(layer["vocabulary"], layer["units"]),
    "lstm": lambda layer, recipe, shape: Lstm(shape[-1], layer["units"], layer["return_sequences"], recipe == "defaults"),
    "gru": lambda layer, recipe, shape: Gru(shape[-1], layer["units"], layer["return_sequences"]),
    "relu": lambda layer, recipe, shape: ReLU(),
    "max_pool": lambda layer, recipe, shape: MaxPool(layer["size"], layer["stride"], _edges(layer)),
    "average_pool": lambda layer, recipe, shape: AveragePool(layer["size"], layer["stride"], _edges(layer), shape),
    "global_max_pool": lambda layer, recipe, shape: GlobalMaxPool(),
    "flatten": lambda layer, recipe, shape: Flatten(),
    "add": lambda layer, recipe, left, right: Add(),
    "concatenate": lambda layer, recipe, *shapes: Concatenate(),
}
KINDS = tuple(_PART)


def make(layer, recipe, *shapes):
    """The module of one resolved layer, whose inputs have these shapes outside."""
    return _PART[layer["kind"]](layer, recipe, *shapes)
