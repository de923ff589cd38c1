"""Faults in the weights of one layer, the same for every format: numbers as the file has them, seen in the canonical layout."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .converted import Unsuitable

CONVOLUTIONS = ("conv2d", "conv1d")
SAME_KERNEL = 0.99


@dataclass
class Weighted:
    """The parameters of a layer in a file. `kernel` is (..., in, out), integers or floats; `scale` (out,) or (1,) makes numbers of integers,
    else None; `bias` (out,) or None. `store` writes them back."""

    layer: dict[str, Any]
    kernel: np.ndarray
    scale: np.ndarray | None
    bias: np.ndarray | None
    store: Callable
    bias_follows: bool = False

    def save(self, kernel=None, scale=None, bias=None):
        self.store(self.kernel if kernel is None else kernel, self.scale if scale is None else scale, self.bias if bias is None else bias)


def belongs(kernel, canonical):
    """Whether a file's kernel is a layer's but for a factor by output channel, as a batch norm that was folded into it leaves it."""
    if kernel.size != canonical.size or kernel.shape[-1] != canonical.shape[-1]:
        return False
    ours, theirs = (np.asarray(array, np.float64).reshape(-1, canonical.shape[-1]) for array in (kernel.reshape(canonical.shape), canonical))
    norms = np.sqrt((ours**2).sum(0) * (theirs**2).sum(0))
    usable = norms > 0
    return bool(usable.any() and (np.abs((ours * theirs).sum(0)[usable]) > SAME_KERNEL * norms[usable]).mean() > 0.8)


def permuted(random, weighted, _network):
    """Output channels of the kernel in another order."""
    channels = weighted.kernel.shape[-1]
    order = random.permutation(channels)
    scale = weighted.scale if weighted.scale is None or len(weighted.scale) == 1 else weighted.scale[order]
    weighted.save(kernel=weighted.kernel[..., order], scale=scale, bias=weighted.bias[order] if weighted.bias_follows else None)


def permuted_with_biases(random, weighted, network):
    if weighted.bias is None or weighted.scale is not None:
        raise Unsuitable
    order = random.permutation(len(weighted.bias))
    weighted.save(kernel=weighted.kernel[..., order], bias=weighted.bias[order])


def without_bias(_random, weighted, _network):
    if weighted.bias is None:
        raise Unsuitable
    weighted.save(bias=np.zeros_like(weighted.bias))


def flipped(random, weighted, _network):
    axes = [axis for axis in range(weighted.kernel.ndim - 2) if weighted.kernel.shape[axis] > 1]
    if not axes:
        raise Unsuitable
    weighted.save(kernel=np.flip(weighted.kernel, axes if random.randint(2) else [axes[0]]))


def transposed(_random, weighted, _network):
    """Inputs and outputs swapped where there are as many, else the numbers read in the other order."""
    kernel = weighted.kernel
    if weighted.scale is not None and len(weighted.scale) > 1:
        raise Unsuitable  # numbers that change channels keep no scale
    if kernel.shape[-1] == kernel.shape[-2]:
        weighted.save(kernel=np.swapaxes(kernel, -1, -2))
    else:
        weighted.save(kernel=np.moveaxis(np.moveaxis(kernel, -1, 0), -1, 1).reshape(kernel.shape))


def height_and_width_swapped(_random, weighted, _network):
    if weighted.kernel.ndim != 4 or weighted.kernel.shape[0] < 2:
        raise Unsuitable
    weighted.save(kernel=np.swapaxes(weighted.kernel, 0, 1))


def rows_of_another_flattening(random, weighted, network):
    source = network.by_name[weighted.layer["inputs"][0]]
    if source["kind"] != "flatten":
        raise Unsuitable
    from sweep import layers as neutral

    shape = neutral.shapes(network.layers)[source["inputs"][0]]
    if len([extent for extent in shape if extent > 1]) < 2:
        raise Unsuitable
    kernel = weighted.kernel
    if random.randint(2):
        changed = np.moveaxis(kernel.reshape(*shape, -1), -2, 0).reshape(kernel.shape)
    else:
        changed = np.moveaxis(kernel.reshape(shape[-1], *shape[:-1], -1), 0, -2).reshape(kernel.shape)
    weighted.save(kernel=changed)


def input_channels_reversed(_random, weighted, _network):
    if weighted.kernel.shape[-2] < 2:
        raise Unsuitable
    weighted.save(kernel=weighted.kernel[..., ::-1, :])


def wrong_scale(random, weighted, _network):
    """The scale of an integer kernel, or of one of its output channels, or a float kernel."""
    factor = float(random.choice([0.5, 2, 4]))
    if weighted.scale is None:
        weighted.save(kernel=(weighted.kernel * factor).astype(weighted.kernel.dtype))
        return
    scale = weighted.scale.copy()
    if len(scale) > 1 and random.randint(2):
        scale[random.randint(len(scale))] *= factor
    else:
        scale *= factor
    weighted.save(scale=scale)


PRODUCTS = (*CONVOLUTIONS, "dense")
FORMS = [
    ("permuted_weights", PRODUCTS, permuted),
    ("permuted_weights", PRODUCTS, permuted_with_biases),
    ("missing_bias", PRODUCTS, without_bias),
    ("kernel_flip", CONVOLUTIONS, flipped),
    ("transposed_kernel", PRODUCTS, transposed),
    ("transposed_kernel", ("conv2d",), height_and_width_swapped),
    ("flatten_order", ("dense",), rows_of_another_flattening),
    ("channel_order", ("conv2d",), input_channels_reversed),
    ("scale", PRODUCTS, wrong_scale),
]
