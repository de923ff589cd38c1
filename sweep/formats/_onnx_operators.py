"""Operators in NumPy for ONNX's reference evaluator, in place of its own where those are slow or wrong: convolution, which loops in Python;
batch norm, which takes older models for training ones; and the largest value of a whole plane, which fails beyond one channel."""

import numpy as np
from onnx.reference.op_run import OpRun


class Conv(OpRun):
    def _run(self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, pads=None, strides=None):
        axes = x.ndim - 2
        strides, dilations = strides or [1] * axes, dilations or [1] * axes
        pads = _pads(auto_pad or "NOTSET", pads, x.shape[2:], w.shape[2:], strides, dilations)
        x = np.pad(x, [(0, 0), (0, 0)] + pads)
        outputs = np.concatenate([_correlate(x[i:i + 1], w, group or 1, strides, dilations) for i in range(len(x))])
        if b is not None:
            outputs += b.reshape((1, -1) + (1,) * axes)
        return (outputs.astype(x.dtype),)


class BatchNormalization(OpRun):
    def _run(self, x, scale, bias, mean, variance, epsilon=None, momentum=None, training_mode=None, spatial=None):
        if training_mode or spatial == 0:
            raise ValueError("BatchNormalization in training mode, or by position")
        shape = (1, -1) + (1,) * (x.ndim - 2)
        factor = scale / np.sqrt(variance + x.dtype.type(epsilon))
        return ((x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)).astype(x.dtype),)


class GlobalMaxPool(OpRun):
    def _run(self, x):
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


OPERATORS = [Conv, BatchNormalization, GlobalMaxPool]


def _pads(auto_pad, pads, sizes, kernel, strides, dilations):
    """(before, after) by axis."""
    if auto_pad == "NOTSET":
        pads = pads or [0] * (2 * len(sizes))
        return [(pads[i], pads[i + len(sizes)]) for i in range(len(sizes))]
    if auto_pad == "VALID":
        return [(0, 0)] * len(sizes)
    found = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations):
        total = max(0, (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size)
        less, more = total // 2, total - total // 2
        found.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return found


def _correlate(x, w, groups, strides, dilations):
    """One padded input (1, C, ...) with kernels (M, C / groups, ...): (1, M, ...)."""
    axes, kernel = x.ndim - 2, w.shape[2:]
    spans = [(k - 1) * dilation + 1 for k, dilation in zip(kernel, dilations)]
    windows = np.lib.stride_tricks.sliding_window_view(x[0], spans, axis=tuple(range(1, axes + 1)))
    steps = (slice(None),) + tuple(slice(None, None, stride) for stride in strides)
    windows = windows[steps + tuple(slice(None, None, dilation) for dilation in dilations)]
    channels, size = len(x[0]) // groups, windows.shape[1:1 + axes]
    windows = windows.reshape((groups, channels) + windows.shape[1:])
    columns = np.moveaxis(windows, 1, axes + 1).reshape(groups, int(np.prod(size)), -1)  # (groups, positions, channels x kernel)
    outputs = columns @ w.reshape(groups, len(w) // groups, -1).transpose(0, 2, 1)
    return outputs.transpose(0, 2, 1).reshape((1, len(w)) + tuple(size))
