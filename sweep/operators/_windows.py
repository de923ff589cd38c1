"""Windows that slide along height and width: where each begins by the definitions of TensorFlow, PyTorch and ONNX, and where else it might.

Padding is `valid`, `same` (TensorFlow's: ceil(size / stride) windows, the odd zero after) or explicit [[top, bottom], [left, right]].
https://www.tensorflow.org/api_docs/python/tf/nn#notes_on_padding_2, https://onnx.ai/onnx/operators/onnx__Conv.html
"""

from collections import namedtuple

import numpy as np

Axis = namedtuple("Axis", "size window stride dilation before after")
"""One spatial axis: input size, window, stride, dilation, and padding before and after, which may be negative: input left out."""

SPATIAL = ("height", "width")


def axes(parameters):
    """The (height, width) Axis of an operator's parameters."""
    found = []
    for at, name in enumerate(SPATIAL):
        size, window, stride = parameters[name], parameters["window_" + name], parameters["stride_" + name]
        dilation = parameters.get("dilation_" + name, 1)
        before, after = sides(size, window, stride, dilation, parameters["padding"], at)
        found.append(Axis(size, window, stride, dilation, before, after))
    return found


def sides(size, window, stride, dilation, padding, at):
    """Padding (before, after) of an axis."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        total = max(same_total(size, window, stride, dilation), 0)
        return total // 2, total - total // 2
    return tuple(padding[at])


def same_total(size, window, stride, dilation):
    """What `same` pads in total, if it is not below 0."""
    return (-(-size // stride) - 1) * stride + extent(window, dilation) - size


def below_zero(parameters):
    """Along which axes the formula of `same` padding gives less than nothing."""
    if parameters["padding"] != "same":
        return []
    return [name for name, axis in zip(SPATIAL, axes(parameters)) if same_total(axis.size, axis.window, axis.stride, axis.dilation) < 0]


def extent(window, dilation):
    """How far a window reaches."""
    return (window - 1) * dilation + 1


def count(axis, ceil_mode=False):
    """How many windows there are along an axis. With ceil_mode also one that ends outside, if it begins within the input or the padding
    before it (PyTorch, and ONNX from operator set 22 on)."""
    room = axis.size + axis.before + axis.after - extent(axis.window, axis.dilation)
    if room < 0:
        return 0
    if not ceil_mode:
        return room // axis.stride + 1
    windows = -(-room // axis.stride) + 1
    return windows - 1 if (windows - 1) * axis.stride >= axis.size + axis.before else windows


def covered(values, both, counts, fill):
    """Every window (N, rows, columns, window height, window width, C) of values (N, H, W, C), with `fill` where there is no input."""
    crops, pads = [slice(None)], [(0, 0)]
    for axis, windows in zip(both, counts):
        needed = (windows - 1) * axis.stride + extent(axis.window, axis.dilation)
        after = needed - axis.size - axis.before
        crops.append(slice(min(max(-axis.before, 0), axis.size), max(axis.size + min(after, 0), 0)))
        pads.append((max(axis.before, 0), max(after, 0)))
    padded = np.pad(values[tuple(crops)], pads + [(0, 0)], mode="constant", constant_values=fill)
    by_image, by_row, by_column, by_channel = padded.strides
    height, width = both
    return np.lib.stride_tricks.as_strided(
        padded, (len(values), counts[0], counts[1], height.window, width.window, values.shape[3]),
        (by_image, by_row * height.stride, by_column * width.stride, by_row * height.dilation, by_column * width.dilation, by_channel),
        writeable=False,
    )


def elsewhere(parameters, both):
    """(fault, detail, axes) of windows that lie elsewhere: along both axes alike first, then along one alone."""
    choices = []
    for fault, detail, change in _changes(parameters["padding"]):
        changed = [change(axis, other) for axis, other in zip(both, both[::-1])]
        choices += [
            (fault, detail, changed),
            (fault, detail + " along the height", [changed[0], both[1]]),
            (fault, detail + " along the width", [both[0], changed[1]]),
        ]
    seen = {_starts(both)}
    for fault, text, form in choices:
        if _starts(form) not in seen:
            seen.add(_starts(form))
            yield fault, text, form


def _starts(both):
    """What an output of a given shape depends on."""
    return tuple(axis._replace(after=0) for axis in both)


def _changes(padding):
    """(fault, detail, change); a change makes another Axis of one and the other axis. The number of windows is kept."""
    yield "padding_missing", "without its padding", lambda axis, other: axis._replace(before=0)
    yield "padding_side", "the odd zero before", lambda axis, other: axis._replace(before=axis.after)
    yield "padding_side", "all of the padding before", lambda axis, other: axis._replace(before=axis.before + axis.after)
    yield "padding_side", "padding made symmetric", lambda axis, other: axis._replace(before=-(-(axis.before + axis.after) // 2))
    if padding == "same":
        yield "padding_same", "`same` padding as for stride 1", lambda axis, other: _same(axis, stride=1)
        yield "padding_same", "`same` padding as without dilation", lambda axis, other: _same(axis, dilation=1)
        yield "padding_same", "`same` padding as for the other axis' stride", lambda axis, other: _same(axis, stride=other.stride)
        yield "padding_same", "`same` padding as for the other axis' window", lambda axis, other: _same(axis, window=other.window)
        yield "padding_same", "`same` padding as for the other axis' size", lambda axis, other: _same(axis, size=other.size)
        yield "padding_same", "`same` padding that may be negative", lambda axis, other: axis._replace(before=_total(axis) // 2)
    yield "padding_swapped", "the padding of the other axis", lambda axis, other: axis._replace(before=other.before)
    yield "dilation_ignored", "without dilation", lambda axis, other: axis._replace(dilation=1)
    yield "dilation_swapped", "the dilation of the other axis", lambda axis, other: axis._replace(dilation=other.dilation)
    yield "stride_ignored", "with stride 1", lambda axis, other: axis._replace(stride=1)
    yield "stride_swapped", "the stride of the other axis", lambda axis, other: axis._replace(stride=other.stride)
    for by in (1, -1, 2, -2):
        text = "windows that begin {} {}".format(abs(by), "later" if by > 0 else "earlier")
        yield "stride_offset", text, lambda axis, other, by=by: axis._replace(before=axis.before - by)


def _same(axis, **other):
    computed = axis._replace(**other)
    return axis._replace(before=max(_total(computed), 0) // 2)


def _total(axis):
    return same_total(axis.size, axis.window, axis.stride, axis.dilation)
