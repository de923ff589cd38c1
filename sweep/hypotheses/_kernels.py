"""Kernels and biases that a framework reads otherwise than the canonical layout says."""

from itertools import permutations

import numpy as np

from sweep.hypotheses._view import altered, before

_AXES = "height", "width", "channel"


def _flips(layer, own, _around):
    names = ("height", "width") if layer["kind"] == "conv2d" else ("steps",)
    forms = [(axis,) for axis in range(len(names))]
    if len(names) > 1:
        forms = [tuple(range(len(names)))] + forms
    for axes in forms:
        if any(own["kernel"].shape[axis] > 1 for axis in axes):
            detail = "the kernel turned round along " + " and ".join(names[axis] for axis in axes)
            yield detail, altered(layer, lambda own, axes=axes: {"kernel": _turned(own["kernel"], axes)})


def _turned(array, axes):
    for axis in axes:
        array = np.flip(array, axis)
    return array


def _transposes(layer, own, _around):
    shape = own["kernel"].shape
    spatial = len(shape) - 2
    swaps = [("inputs and outputs of the kernel swapped", tuple(range(spatial)) + (spatial + 1, spatial))]
    if spatial == 2:
        swaps += [("height and width of the kernel swapped", (1, 0, 2, 3)), ("the kernel's axes all swapped in pairs", (1, 0, 3, 2))]
    for detail, axes in swaps:
        if tuple(shape[axis] for axis in axes) == shape:
            yield detail, altered(layer, lambda own, axes=axes: {"kernel": own["kernel"].transpose(axes)})
    # An array in another layout that was reshaped where it had to be transposed: (out, in, ...) is what some frameworks keep.
    other = (spatial + 1, spatial) + tuple(range(spatial))
    back = tuple(np.argsort(other))
    yield "the kernel's numbers read as outputs x inputs", altered(
        layer, lambda own: {"kernel": own["kernel"].reshape([shape[axis] for axis in other]).transpose(back)}
    )
    yield "the kernel's numbers, kept as outputs x inputs, read as they lie", altered(
        layer, lambda own: {"kernel": own["kernel"].transpose(other).reshape(shape)}
    )


def _flattenings(layer, _own, around):
    """A dense layer whose rows are in another order than its flattened input."""
    if around.source_shape is None or len(around.source_shape) < 2:
        return
    shape = around.source_shape
    for order in _orders(len(shape)):
        for inverse in (False, True):

            def rows(own, order=order, inverse=inverse):
                places = np.arange(int(np.prod(shape))).reshape(shape).transpose(order).ravel()
                return {"kernel": own["kernel"][np.argsort(places) if inverse else places]}

            yield "the kernel's rows in {} order".format(_named(order)), altered(layer, rows)


def _flatten(_layer, _own, _around):
    """A flatten layer in another order; what it reads has its own number of axes."""

    def ordered(order, inverse):
        def compute(view):
            values = view.inputs[0]
            if values.ndim != len(order) + 1:
                return None
            if inverse:
                shape = [values.shape[axis + 1] for axis in order]
                values = values.reshape([len(values)] + shape).transpose([0] + [int(axis) + 1 for axis in np.argsort(order)])
            else:
                values = values.transpose((0,) + tuple(axis + 1 for axis in order))
            return values.reshape(len(values), -1)

        return compute

    for rank in (2, 3):
        for order in _orders(rank):
            yield "flattened in {} order".format(_named(order)), ordered(order, False)
            yield "read as flattened in {} order".format(_named(order)), ordered(order, True)


def _orders(rank):
    """Every order of the axes but the right one; for images channels first is the likeliest."""
    orders = [order for order in permutations(range(rank)) if order != tuple(range(rank))]
    return sorted(orders, key=lambda order: order != (rank - 1,) + tuple(range(rank - 1)))


def _named(order):
    names = _AXES if len(order) == 3 else ("step", "channel")
    return "-".join(names[axis] for axis in order)


def _channels(layer, _own, _around):
    if layer["kind"] == "input":
        yield "the channels in reverse order", lambda view: view.inputs[0][..., ::-1]
        yield "channels last read as channels first", lambda view: _reinterpreted(view.inputs[0])
        yield "channels first read as channels last", lambda view: _reinterpreted(view.inputs[0], back=True)
    else:
        yield "its input's channels in reverse order", before(layer, lambda values: values[..., ::-1])
        yield "its input read with channels first", before(layer, _reinterpreted)
    if layer["kind"].startswith("conv"):
        yield "the filters in reverse order", altered(layer, lambda own: {"kernel": own["kernel"][..., ::-1]})


def _reinterpreted(values, back=False):
    if values.ndim != 4:
        return values
    count, height, width, channels = values.shape
    if back:
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2)).reshape(values.shape)
    return values.reshape(count, channels, height, width).transpose(0, 2, 3, 1)


def _biases(layer, _own, _around):
    yield "without its bias", altered(layer, lambda own: {"bias": np.zeros_like(own["bias"])})


def _scaled_biases(layer, _own, _around):
    yield "its bias twice", altered(layer, lambda own: {"bias": 2 * own["bias"]})
    yield "its bias subtracted", altered(layer, lambda own: {"bias": -own["bias"]})


KERNELS = (
    ("missing_bias", ("conv2d", "conv1d", "dense"), _biases),
    ("kernel_flip", ("conv2d", "conv1d"), _flips),
    ("flatten_order", ("dense",), _flattenings),
    ("flatten_order", ("flatten",), _flatten),
    ("transposed_kernel", ("conv2d", "conv1d", "dense"), _transposes),
    ("channel_order", ("input", "conv2d", "conv1d", "normalize", "batch_norm"), _channels),
    ("bias_scaled", ("conv2d", "conv1d", "dense"), _scaled_biases),
)
