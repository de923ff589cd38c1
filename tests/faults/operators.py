"""Layers computed in the faulty way by PyTorch's operators, for what no list and no weights can express. Arrays are NumPy, channels last."""

import numpy as np
import torch
from torch.nn import functional


def _inner(values):
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(values, -1, 1) if values.ndim > 2 else values))


def _outer(values):
    array = values.detach().float().numpy()
    return np.ascontiguousarray(np.moveaxis(array, 1, -1) if array.ndim > 2 else array)


def computed(function, values):
    """An elementwise function."""
    return function(torch.from_numpy(np.ascontiguousarray(values))).numpy()


ACTIVATIONS = {
    "relu6": functional.relu6, "leaky": functional.leaky_relu, "leaky as elsewhere": lambda x: functional.leaky_relu(x, 0.3), "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "none": lambda x: x, "elu": functional.elu, "softplus": functional.softplus, "silu": functional.silu,
}


def leaky(slope):
    return lambda values: functional.leaky_relu(values, slope)


FURTHER = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "softmax": lambda x: torch.softmax(x, -1)}
ROUNDED = {name: (lambda array, name=name: torch.from_numpy(array).to(getattr(torch, name)).float().numpy()) for name in ("float16", "bfloat16")}


def flatten_channels_first(values, **_):
    return _inner(values).flatten(1).numpy()


def reinterpreted(images, **_):
    """The memory of channels last taken for channels first."""
    count, height, width, channels = images.shape
    return _outer(torch.from_numpy(images).reshape(count, channels, height, width))


def _parameters(own, *names):
    return [torch.from_numpy(own[name]) for name in names]


def norm_in_training(values, own, epsilon):
    mean, variance, gamma, beta = (each.clone() for each in _parameters(own, "mean", "variance", "gamma", "beta"))
    return _outer(functional.batch_norm(_inner(values), mean, variance, gamma, beta, training=True, eps=epsilon))


def norm_with_epsilon_outside(values, own, epsilon):
    mean, variance, gamma, beta = _parameters(own, "mean", "variance", "gamma", "beta")
    return ((torch.from_numpy(values) - mean) / (variance.sqrt() + epsilon) * gamma + beta).numpy()


def linear(values, own, layer, dtype):
    """A convolution or a dense layer in another dtype, given and returned as float32."""
    dtype, inner = getattr(torch, dtype), _inner(values)
    kernel, bias = (each.to(dtype) for each in _parameters(own, "kernel", "bias"))
    if layer["kind"] == "dense":
        return _outer(functional.linear(inner.to(dtype), kernel.T, bias))
    sides = [layer["padding"]] if layer["kind"] == "conv1d" else layer["padding"]
    inner = functional.pad(inner.to(dtype), [zeros for side in reversed(sides) for zeros in side])
    return _outer(_convolve(layer)(inner, _weight(kernel), bias, layer["stride"]))


def _convolve(layer):
    return functional.conv1d if layer["kind"] == "conv1d" else functional.conv2d


def _weight(kernel):
    return kernel.movedim(-1, 0).movedim(-1, 1)


def convolution_padded_by(values, own, layer, mode):
    kernel, bias = _parameters(own, "kernel", "bias")
    sides = [layer["padding"]] if layer["kind"] == "conv1d" else layer["padding"]
    inner = functional.pad(_inner(values), [count for side in reversed(sides) for count in side], mode=mode)
    return _outer(_convolve(layer)(inner, _weight(kernel), bias, layer["stride"]))


def from_the_second_place(values, own):
    """Every window one place further, with a zero after the edge."""
    crop = [(0, 0)] + [(0, 1)] * (values.ndim - 2) + [(0, 0)]
    inside = (slice(None),) + (slice(1, None),) * (values.ndim - 2)
    return own(np.pad(values, crop)[inside].copy())


def pool_with_zeros(values, layer):
    (top, bottom), (left, right) = layer["padding"]
    inner = functional.pad(_inner(values), (left, right, top, bottom))
    pool = functional.max_pool2d if layer["kind"] == "max_pool" else functional.avg_pool2d
    return _outer(pool(inner, layer["size"], layer["stride"]))


def global_mean(values, **_):
    return torch.from_numpy(values).flatten(1, -2).mean(1).numpy()


_GATES = {"sigmoid": torch.sigmoid, "hard_sigmoid": lambda x: torch.clamp(0.2 * x + 0.5, 0, 1), "hardsigmoid": functional.hardsigmoid}


def recurrent(values, own, layer, gate=None, squash="tanh", reset_after=None, inverted=False, keep=None, at=-1):
    """A recurrent layer step by step; `keep` (N, T) says which steps aren't skipped, `at` which step's output is the layer's."""
    gate, squash = _GATES[gate or layer["recurrent_activation"]], getattr(torch, squash)
    reset_after = layer.get("reset_after") if reset_after is None else reset_after
    kernel, recurrent_kernel, bias = _parameters(own, "kernel", "recurrent_kernel", "bias")
    second = torch.from_numpy(own["recurrent_bias"]) if "recurrent_bias" in own else torch.zeros_like(bias)
    steps, units = torch.from_numpy(values), layer["units"]
    hidden = cell = torch.zeros(len(values), units)
    outputs = []
    for step in range(steps.shape[1]):
        given = steps[:, step] @ kernel + bias
        if layer["kind"] == "lstm":
            i, f, g, o = (given + hidden @ recurrent_kernel).chunk(4, 1)
            new_cell = gate(f) * cell + gate(i) * squash(g)
            new = gate(o) * squash(new_cell)
        else:
            recalled = hidden @ recurrent_kernel[:, : 2 * units] + second[: 2 * units]
            z, r = gate(given[:, : 2 * units] + recalled).chunk(2, 1)
            last, last_bias = recurrent_kernel[:, 2 * units:], second[2 * units:]
            reset = r * (hidden @ last + last_bias) if reset_after else (r * hidden) @ last + last_bias
            candidate, new_cell = squash(given[:, 2 * units:] + reset), cell
            new = (1 - z) * hidden + z * candidate if inverted else z * hidden + (1 - z) * candidate
        if keep is not None:
            kept = torch.from_numpy(keep[:, step: step + 1])
            new, new_cell = torch.where(kept, new, hidden), torch.where(kept, new_cell, cell)
        hidden, cell = new, new_cell
        outputs.append(hidden)
    return (torch.stack(outputs, 1) if layer["return_sequences"] else outputs[at]).numpy()
