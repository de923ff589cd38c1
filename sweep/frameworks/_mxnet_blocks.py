"""Each kind of neutral layer as a Gluon block. The channel is axis 1 of images (N, C, H, W) and of sequences (N, C, steps)."""

import mxnet as mx
import numpy as np
from mxnet.gluon import HybridBlock, nn, rnn


def part(layer, recipe, dtype, *inputs):
    """The block of a layer that reads these shapes (`sweep.layers.shapes`)."""
    return _PART[layer["kind"]](layer, recipe, dtype, *inputs)


def holder(block):
    """The block that has a layer's parameters."""
    return block.layer if isinstance(block, Recurrent) else block


def second_bias(block):
    """An lstm has two biases here, whose sum is the canonical one; this is the other one."""
    return block.layer.h2h_bias


class Normalize(HybridBlock):
    """(x - mean) / std per channel."""

    def __init__(self, mean, std, dtype, rank):
        super().__init__()
        shape = (1, -1) + (1,) * (rank - 1)
        self.mean = self.params.get_constant("mean", mx.nd.array(np.reshape(mean, shape), dtype=dtype))
        self.std = self.params.get_constant("std", mx.nd.array(np.reshape(std, shape), dtype=dtype))

    def hybrid_forward(self, F, values, mean, std):
        return F.broadcast_div(F.broadcast_sub(values, mean), std)


class Conv2D(nn.Conv2D):
    """A convolution whose padding may differ from side to side; only then it is a step of its own."""

    def __init__(self, channels, layer):
        padding = _even(layer["padding"])
        super().__init__(layer["filters"], layer["kernel"], layer["stride"], padding or 0, in_channels=channels)
        self.edges = None if padding else layer["padding"]

    def hybrid_forward(self, F, values, weight, bias):
        values = _padded(F, values, self.edges, 0) if self.edges else values
        return super().hybrid_forward(F, values, weight, bias)


class Conv1D(nn.Conv1D):
    """Likewise along the steps of a sequence."""

    def __init__(self, channels, layer):
        before, after = layer["padding"]
        even = before == after
        super().__init__(layer["filters"], layer["kernel"], layer["stride"], before if even else 0, in_channels=channels)
        self.edges = None if even else (before, after)

    def hybrid_forward(self, F, values, weight, bias):
        if self.edges:  # MXNet pads images alone
            values = F.reshape(_padded(F, F.expand_dims(values, axis=2), ((0, 0), self.edges), 0), shape=(0, 0, -1))
        return super().hybrid_forward(F, values, weight, bias)


class BatchNorm(nn.BatchNorm):
    """Batch normalisation that, `frozen`, takes the moving statistics also while training is recorded."""

    frozen = False

    def hybrid_forward(self, F, values, gamma, beta, running_mean, running_var):
        return F.BatchNorm(values, gamma, beta, running_mean, running_var, **dict(self._kwargs, use_global_stats=self.frozen))


class Embedding(nn.Embedding):
    """Token ids (N, steps) to (N, units, steps)."""

    def hybrid_forward(self, F, ids, weight):
        return F.transpose(super().hybrid_forward(F, ids, weight), axes=(0, 2, 1))


class Recurrent(HybridBlock):
    """A recurrent cell, step by step. The fused layers of 1.9.1 (rnn.LSTM, rnn.GRU) write beyond their memory in the backward pass: with
    384 units, 40 steps and 32 examples the process crashes, whatever the engine."""

    def __init__(self, cell, states, layer, steps):
        super().__init__()
        self.layer, self.states, self.steps = cell, states, steps
        self.units, self.return_sequences = layer["units"], layer["return_sequences"]

    def hybrid_forward(self, F, values):
        sequence = F.transpose(values, axes=(0, 2, 1))
        one = F.slice_axis(F.slice_axis(values, axis=1, begin=0, end=1), axis=2, begin=0, end=1)
        zeros = F.broadcast_axis(F.reshape(F.zeros_like(one), shape=(0, -1)), axis=1, size=self.units)
        states = [zeros] * self.states
        merged = self.return_sequences
        outputs, _states = self.layer.unroll(self.steps, sequence, states, layout="NTC", merge_outputs=merged)
        return F.transpose(outputs, axes=(0, 2, 1)) if merged else outputs[-1]


class UnevenMaxPool(HybridBlock):
    """A maximum whose padding differs from side to side."""

    def __init__(self, layer):
        super().__init__()
        self.edges, self.pool = layer["padding"], nn.MaxPool2D(layer["size"], layer["stride"])

    def hybrid_forward(self, F, values):
        return self.pool(_padded(F, values, self.edges, -np.inf))


class UnevenAveragePool(HybridBlock):
    """A mean whose padding differs from side to side: the sum of each window over how many of its places are not padding."""

    def __init__(self, layer, dtype, shape):
        super().__init__()
        self.edges, self.window = layer["padding"], {"kernel": (layer["size"],) * 2, "stride": (layer["stride"],) * 2}
        rows, columns = ([len(window) for window in _windows(layer, *axis)] for axis in zip(shape[:2], layer["padding"]))
        self.counts = self.params.get_constant("counts", mx.nd.array(np.outer(rows, columns)[None, None], dtype=dtype))

    def hybrid_forward(self, F, values, counts):
        return F.broadcast_div(F.Pooling(_padded(F, values, self.edges, 0), pool_type="sum", **self.window), counts)


def _windows(layer, extent, padding):
    """The positions along one axis that each window holds, without padding."""
    before, after = padding
    starts = range(-before, extent + after - layer["size"] + 1, layer["stride"])
    return [range(max(start, 0), min(start + layer["size"], extent)) for start in starts]


def _even(padding):
    """What MXNet's layers take as padding, (rows, columns), or None where its sides differ."""
    (top, bottom), (left, right) = padding
    return (top, left) if top == bottom and left == right else None


def _padded(F, values, padding, fill):
    (top, bottom), (left, right) = padding
    return F.pad(values, mode="constant", pad_width=(0, 0, 0, 0, top, bottom, left, right), constant_value=fill)


def _batch_norm(layer, recipe, _dtype, shape):
    # MXNet holds the momentum in float32, whatever the statistics are held in, which is 1e-6 off in float64. With 0 it leaves the
    # batch's own statistics (the biased variance), and the network blends them. `scale` lets gamma be trained and not taken for 1.
    momentum = layer["momentum"] if recipe == "defaults" else 0.0
    return BatchNorm(momentum=momentum, epsilon=layer["epsilon"], scale=True, in_channels=shape[-1])


def _max_pool(layer, _recipe, _dtype, _shape):
    padding = _even(layer["padding"])
    return nn.MaxPool2D(layer["size"], layer["stride"], padding) if padding else UnevenMaxPool(layer)


def _average_pool(layer, _recipe, dtype, shape):
    padding = _even(layer["padding"])
    if padding:
        return nn.AvgPool2D(layer["size"], layer["stride"], padding, count_include_pad=False)
    return UnevenAveragePool(layer, dtype, shape)


def _lstm(layer, recipe, _dtype, shape):
    cell = rnn.LSTMCell(layer["units"], input_size=shape[-1])
    if recipe != "defaults":
        cell.h2h_bias.grad_req = "null"  # stays zero, so that there is one bias as in the list
    return Recurrent(cell, 2, layer, shape[0])


def _gru(layer, _recipe, _dtype, shape):
    return Recurrent(rnn.GRUCell(layer["units"], input_size=shape[-1]), 1, layer, shape[0])


def _flatten(_layer, _recipe, _dtype, shape):
    """Features in height-width-channel order, so that canonical dense kernels need a transpose only."""
    axes = (0,) + tuple(range(2, len(shape) + 1)) + (1,)
    return nn.HybridLambda(lambda F, values: F.Flatten(F.transpose(values, axes=axes)))


_PART = {
    "input": lambda layer, recipe, dtype: nn.HybridLambda(lambda F, images: F.transpose(images, axes=(0, 3, 1, 2))),
    "tokens": lambda layer, recipe, dtype: nn.HybridLambda(lambda F, ids: F.identity(ids)),
    "normalize": lambda layer, recipe, dtype, shape: Normalize(layer["mean"], layer["std"], dtype, len(shape)),
    "conv2d": lambda layer, recipe, dtype, shape: Conv2D(shape[-1], layer),
    "conv1d": lambda layer, recipe, dtype, shape: Conv1D(shape[-1], layer),
    "dense": lambda layer, recipe, dtype, shape: nn.Dense(layer["units"], in_units=shape[-1]),
    "batch_norm": _batch_norm,
    "embedding": lambda layer, recipe, dtype, shape: Embedding(layer["vocabulary"], layer["units"], dtype=dtype),
    "lstm": _lstm,
    "gru": _gru,
    "relu": lambda layer, recipe, dtype, shape: nn.Activation("relu"),
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "global_max_pool": lambda layer, recipe, dtype, shape: nn.HybridLambda(
        lambda F, values: F.Flatten(F.Pooling(values, global_pool=True, pool_type="max", kernel=(1,) * (len(shape) - 1)))
    ),
    "flatten": _flatten,
    "add": lambda layer, recipe, dtype, left, right: nn.HybridLambda(lambda F, one, other: one + other),
    "concatenate": lambda layer, recipe, dtype, *sources: nn.HybridLambda(lambda F, *parts: F.concat(*parts, dim=1)),
}
KINDS = tuple(_PART)

_KERNEL_AND_BIAS = {"kernel": "weight", "bias": "bias"}
_RECURRENT = {"kernel": "i2h_weight", "recurrent_kernel": "h2h_weight", "bias": "i2h_bias", "recurrent_bias": "h2h_bias"}
ATTRIBUTE = {
    "conv2d": _KERNEL_AND_BIAS,
    "conv1d": _KERNEL_AND_BIAS,
    "dense": _KERNEL_AND_BIAS,
    "embedding": {"kernel": "weight"},
    "batch_norm": {"gamma": "gamma", "beta": "beta", "mean": "running_mean", "variance": "running_var"},
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
}
