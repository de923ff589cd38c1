"""Single operators (`sweep.operators`) as PyTorch modules: run, and written in the formats that models are exported in.

Inputs and outputs have the channels last, as the exported networks have.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from sweep.frameworks import _pytorch_together
from sweep.frameworks._pytorch_parts import Gru, Lstm, channels_last, inner
from sweep.operators import _probe as probing
from sweep.operators import _windows, activation, rearrange

_SYMMETRIC = ["valid", [[1, 1], [1, 1]]]
FAMILIES = {
    "conv2d": [],
    "depthwise_conv2d": [],
    "conv_transpose2d": [{"padding": _SYMMETRIC}],
    "max_pool": [{"padding": _SYMMETRIC}],
    "average_pool": [{"padding": _SYMMETRIC}],
    "resize_nearest": [{"coordinates": ["half_pixel", "asymmetric"]}],
    "resize_bilinear": [{"coordinates": ["half_pixel", "align_corners"]}],
    "batch_norm": [],
    "softmax": [],
    "reduce": [],
    "activation": [],
    "dense": [],
    "lstm": [{"recurrent_activation": ["sigmoid"]}],
    "gru": [{"recurrent_activation": ["sigmoid"], "reset_after": [True]}],
    "pad": [{"mode": ["constant", "reflect", "edge"]}],
    "rearrange": [],
}
"""The operators, each with what PyTorch has a way to ask for (`sweep.probing.draw.Ways`)."""


@torch.inference_mode()
def run(probe, inputs):
    """The output in PyTorch itself, float32 (N, ...)."""
    return _module(probe)(torch.from_numpy(inputs)).contiguous().numpy()


def export(probes, target, folders):
    """For each probe in turn the name of what was written into its folder, or the exception that came of it."""
    modules = []
    for probe in probes:
        try:
            modules.append((_module(probe), torch.from_numpy(probing.arrays_of(probe)[1])))
        except Exception as error:  # what a module may not be asked for
            modules.append((error, None))
    contents = _pytorch_together.WRITE[target]([pair for pair in modules if not isinstance(pair[0], Exception)])
    for (module, _example), folder in zip(modules, folders):
        result = module if isinstance(module, Exception) else next(contents)
        if not isinstance(result, Exception):
            (Path(folder) / _pytorch_together.FILE[target]).write_bytes(result)
            result = _pytorch_together.FILE[target]
        yield result


class _Images(nn.Module):
    """A function of images with the channels first, between images with the channels last."""

    def __init__(self, compute, weights=()):
        super().__init__()
        self.compute = compute
        for name, array in dict(weights).items():
            self.register_buffer(name, torch.from_numpy(array.copy()))

    def forward(self, values):
        return channels_last(self.compute(self, inner(values)))


class _Values(_Images):
    """A function of values as they come."""

    def forward(self, values):
        return self.compute(self, values)


def _module(probe):
    weights, _inputs = probing.arrays_of(probe)
    return _BUILD[probe["operator"]](probe["parameters"], weights).eval()


def _spatial(parameters, name):
    return parameters[name + "_height"], parameters[name + "_width"]


def _convolution(parameters, weights, groups):
    kernel = weights["kernel"].transpose(3, 2, 0, 1)
    height, width = _windows.axes(parameters)
    even = height.before == height.after and width.before == width.after
    edges = (width.before, width.after, height.before, height.after)
    stride, dilation = _spatial(parameters, "stride"), _spatial(parameters, "dilation")
    padding = (height.before, width.before) if even else 0

    def compute(own, images):
        images = images if even else functional.pad(images, edges)
        return functional.conv2d(images, own.kernel, getattr(own, "bias", None), stride, padding, dilation, groups)

    return _Images(compute, dict(weights, kernel=kernel))


def _conv_transpose2d(parameters, weights):
    (top, _bottom), (left, _right) = [[0, 0], [0, 0]] if parameters["padding"] == "valid" else parameters["padding"]
    stride, dilation = _spatial(parameters, "stride"), _spatial(parameters, "dilation")

    def compute(own, images):
        return functional.conv_transpose2d(
            images, own.kernel, getattr(own, "bias", None), stride, (top, left), parameters["output_padding"], 1, dilation
        )

    return _Images(compute, dict(weights, kernel=weights["kernel"].transpose(2, 3, 0, 1)))


def _pool(function, parameters, **options):
    edges = [[0, 0], [0, 0]] if parameters["padding"] == "valid" else parameters["padding"]
    placed = _spatial(parameters, "window"), _spatial(parameters, "stride"), tuple(side[0] for side in edges)
    return _Images(lambda own, images: function(images, *placed, ceil_mode=parameters["ceil_mode"], **options))


def _resize(parameters, **options):
    return _Images(lambda own, images: functional.interpolate(images, (parameters["new_height"], parameters["new_width"]), **options))


def _batch_norm(parameters, weights):
    return _Images(
        lambda own, values: functional.batch_norm(values, own.mean, own.variance, own.gamma, own.beta, eps=parameters["epsilon"]), weights
    )


def _softmax(parameters, _weights):
    function = torch.log_softmax if parameters["logarithm"] else torch.softmax
    return _Values(lambda own, values: function(values, parameters["axis"]))


def _reduce(parameters, _weights):
    axes, keepdims = parameters["axes"], parameters["keepdims"]
    if parameters["function"] == "prod":
        return _Values(lambda own, values: _product(values, axes, keepdims))
    function = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}[parameters["function"]]
    return _Values(lambda own, values: function(values, axes, keepdim=keepdims))


def _product(values, axes, keepdims):
    """torch.prod takes one axis."""
    for axis in sorted(axes, reverse=True):
        values = torch.prod(values, axis, keepdim=keepdims)
    return values


_ACTIVATIONS = {
    "leaky_relu": lambda values: functional.leaky_relu(values, activation.LEAK),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hard_sigmoid": functional.hardsigmoid,
    "hard_swish": functional.hardswish,
    "gelu_tanh": lambda values: functional.gelu(values, approximate="tanh"),
}


def _activation(parameters, _weights):
    function = _ACTIVATIONS.get(parameters["function"]) or getattr(functional, parameters["function"])
    return _Values(lambda own, values: function(values))


def _dense(_parameters, weights):
    return _Values(
        lambda own, values: functional.linear(values, own.kernel, getattr(own, "bias", None)), dict(weights, kernel=weights["kernel"].T)
    )


class _Sequences(nn.Module):
    """A recurrent part with given weights."""

    def __init__(self, part, weights, gates):
        super().__init__()
        self.part = part
        second = weights.get("recurrent_bias", 0 * weights["bias"])
        arrays = [weights["kernel"].T, weights["recurrent_kernel"].T, weights["bias"], second]
        for tensor, array in zip(part.all_weights[0], arrays):
            blocks = torch.from_numpy(array.copy()).chunk(len(gates))
            tensor.detach().copy_(torch.cat([blocks[gate] for gate in gates]))

    def forward(self, values):
        return self.part(values)


def _lstm(parameters, weights):
    part = Lstm(parameters["features"], parameters["units"], parameters["return_sequences"], trains_both=False)
    return _Sequences(part, weights, (0, 1, 2, 3))


def _gru(parameters, weights):
    part = Gru(parameters["features"], parameters["units"], parameters["return_sequences"])
    return _Sequences(part, weights, (1, 0, 2))  # r, z, h


def _pad(parameters, _weights):
    (top, bottom), (left, right) = parameters["padding"]
    mode = {"edge": "replicate"}.get(parameters["mode"], parameters["mode"])
    fill = parameters["constant"] if mode == "constant" else None
    return _Images(lambda own, images: functional.pad(images, (left, right, top, bottom), mode, fill))


def _rearranged(parameters, values):
    function, axis = parameters["function"], parameters["axis"]
    if function == "transpose":
        return values.permute(rearrange.order(parameters))
    if function == "reshape":
        return values.reshape([values.shape[0]] + rearrange.new_shape(parameters))
    before = (slice(None),) * axis
    if function == "slice":
        return values[before + (slice(1, None, 2),)]
    cut = rearrange.halves(parameters)
    return torch.cat([values[before + (slice(cut, None),)], values[before + (slice(None, cut),)]], axis)


_BUILD = {
    "conv2d": lambda parameters, weights: _convolution(parameters, weights, parameters["groups"]),
    "depthwise_conv2d": lambda parameters, weights: _convolution(parameters, weights, parameters["channels"]),
    "conv_transpose2d": _conv_transpose2d,
    "max_pool": lambda parameters, _weights: _pool(functional.max_pool2d, parameters, dilation=_spatial(parameters, "dilation")),
    "average_pool": lambda parameters, _weights: _pool(
        functional.avg_pool2d, parameters, count_include_pad=parameters["count_include_pad"]
    ),
    "resize_nearest": lambda parameters, _weights: _resize(
        parameters, mode="nearest-exact" if parameters["coordinates"] == "half_pixel" else "nearest"
    ),
    "resize_bilinear": lambda parameters, _weights: _resize(
        parameters, mode="bilinear", align_corners=parameters["coordinates"] == "align_corners"
    ),
    "batch_norm": _batch_norm,
    "softmax": _softmax,
    "reduce": _reduce,
    "activation": _activation,
    "dense": _dense,
    "lstm": _lstm,
    "gru": _gru,
    "pad": _pad,
    "rearrange": lambda parameters, _weights: _Values(lambda own, values: _rearranged(parameters, values)),
}
