"""Ways to get it wrong that several operators share, by the names that `sweep.hypotheses` gives them for layers."""

import itertools

import numpy as np


def of_biases(weights, compute):
    """The bias left out, or added twice."""
    if "bias" in weights:
        yield "missing_bias", "without its bias", lambda: compute(dict(weights, bias=np.zeros_like(weights["bias"])))
        yield "bias_scaled", "its bias twice", lambda: compute(dict(weights, bias=2 * weights["bias"]))


def of_kernels(weights, spatial, compute):
    """The kernel (..., in, out) turned round, or its axes or numbers in another order."""
    kernel = weights["kernel"]
    for axes in [spatial] + [(axis,) for axis in spatial]:
        if any(kernel.shape[axis] > 1 for axis in axes):
            named = " and ".join(("height", "width")[axis] for axis in axes)
            yield ("kernel_flip", "the kernel turned round along {}".format(named),
                   lambda axes=axes: compute(dict(weights, kernel=np.flip(kernel, axes))))
    for order in itertools.permutations(range(kernel.ndim)):
        if order != tuple(range(kernel.ndim)):
            shape = tuple(kernel.shape[axis] for axis in order)
            yield ("transposed_kernel", "the kernel's numbers, kept in the order of axes {}, read as they lie".format(order),
                   lambda order=order: compute(dict(weights, kernel=kernel.transpose(order).reshape(kernel.shape))))
            yield ("transposed_kernel", "the kernel's numbers read in the order of axes {}".format(order),
                   lambda order=order, shape=shape: compute(dict(weights, kernel=kernel.reshape(shape).transpose(np.argsort(order)))))


def of_channels(inputs, groups, compute):
    """The input's channels in another order."""
    channels = inputs.shape[-1]
    if channels > 1:
        yield "channel_order", "its input's channels in reverse order", lambda: compute(inputs[..., ::-1])
    if 1 < groups < channels:
        order = np.arange(channels).reshape(groups, -1)
        yield ("groups", "the channels of a group taken {} apart".format(groups),
               lambda: compute(inputs[..., np.arange(channels).reshape(-1, groups).T.ravel()]))
        yield "groups", "every group reads the first one's channels", lambda: compute(inputs[..., np.tile(order[0], groups)])


def of_values(inputs, observed, expected):
    """What any operator may do to its output or input as a whole; `expected` computes the right output of other inputs."""
    right = expected(inputs)
    yield "zeros", "nothing but zeros", lambda: np.zeros_like(right)
    yield "first_example", "the first example's output for all", lambda: np.broadcast_to(right[:1], right.shape)
    yield "left_out", "its input handed through", lambda: inputs if inputs.shape == right.shape else None
    if right.ndim == 4:
        yield "layout", "its output with channels first", lambda: _reread(right)
        yield "layout", "its input read with channels first", lambda: expected(_reread(inputs)) if inputs.ndim == 4 else None
    for axis in range(1, right.ndim):
        yield "turned", "its output turned round along axis {}".format(axis), lambda axis=axis: np.flip(right, axis)
    yield "clipping", "cut to the range of what was observed", lambda: _clipped(right, observed)
    for name, bits in (("bfloat16", 16), ("tensor float", 13)):
        yield "reduced_precision", "inputs rounded to " + name, lambda bits=bits: expected(_cut(inputs, bits))
    yield "reduced_precision", "inputs rounded to float16", lambda: expected(inputs.astype(np.float16).astype(inputs.dtype))
    yield "scale", "multiplied by a constant", lambda: _scaled(right, observed)


def _reread(values):
    count, height, width, channels = values.shape
    return values.transpose(0, 3, 1, 2).reshape(count, height, width, channels)


def _clipped(right, observed):
    finite = observed[np.isfinite(observed)]
    if not finite.size or finite.min() == finite.max():
        return None
    cut = (right < finite.min()) | (right > finite.max())
    return np.clip(right, finite.min(), finite.max()) if cut.any() else None


def _cut(values, bits):
    """float32 without its last bits, to nearest, ties to even."""
    whole = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    odd = (whole >> np.uint64(bits)) & np.uint64(1)
    rounded = (whole + np.uint64((1 << (bits - 1)) - 1) + odd) >> np.uint64(bits) << np.uint64(bits)
    return rounded.astype(np.uint32).view(np.float32).astype(values.dtype)


def _scaled(right, observed):
    """By least squares."""
    both = np.isfinite(right) & np.isfinite(observed)
    power = (right[both] ** 2).sum()
    factor = (right[both] * observed[both]).sum() / power if power > 0 else 0
    return right * factor if factor else None
