"""Each kind of neutral layer as a Theano expression.

Inside, images are (N, C, H, W), sequences (N, T, C), vectors (N, C), and parameters have Theano's layout: `to_canonical` has the axes.
"""

import numpy as np
import theano
import theano.tensor as T
from theano.gradient import disconnected_grad
from theano.tensor.signal.pool import pool_2d

# Axes of a parameter by its rank: biases; matrices; kernels of conv1d (out, in, width) and conv2d (out, in, height, width).
_TO_CANONICAL = {1: (0,), 2: (0, 1), 3: (2, 1, 0), 4: (2, 3, 1, 0)}
_FROM_CANONICAL = {1: (0,), 2: (0, 1), 3: (2, 1, 0), 4: (3, 2, 0, 1)}


def to_canonical(array):
    """A copy of a parameter in canonical layout."""
    return array.transpose(_TO_CANONICAL[array.ndim]).copy(order="C")


def from_canonical(array, dtype):
    """The reverse, in dtype."""
    return np.array(array.transpose(_FROM_CANONICAL[array.ndim]), dtype, order="C")


def channels_first(values):
    """Images as they are inside; other values are the same inside and outside."""
    return values.dimshuffle(0, 3, 1, 2) if values.ndim == 4 else values


def channels_last(values):
    """The reverse."""
    return values.dimshuffle(0, 2, 3, 1) if values.ndim == 4 else values


def _constant(values, like):
    """Without its dtype, a constant would be of floatX or of the smallest that holds it, and might widen the whole network."""
    return T.constant(np.asarray(values, like.dtype))


def _per_channel(vector, ndim):
    return vector.dimshuffle({4: ("x", 0, "x", "x"), 3: ("x", "x", 0), 2: ("x", 0)}[ndim])


def _normalize(layer, _own, values):
    mean, std = (_per_channel(_constant(layer[name], values), values.ndim) for name in ("mean", "std"))
    return (values - mean) / std


def _conv2d(layer, own, images):
    product = T.nnet.conv2d(
        images, own["kernel"], border_mode=tuple(tuple(side) for side in layer["padding"]), subsample=(layer["stride"],) * 2,
        filter_flip=False,  # Theano's own is the convolution of mathematics, which flips the kernel
    )
    return product + _per_channel(own["bias"], 4)


def _conv1d(layer, own, values):
    product = T.nnet.conv2d(
        values.dimshuffle(0, 2, 1, "x"), own["kernel"].dimshuffle(0, 1, 2, "x"), border_mode=(tuple(layer["padding"]), (0, 0)),
        subsample=(layer["stride"], 1), filter_flip=False,
    )
    return product[:, :, :, 0].dimshuffle(0, 2, 1) + _per_channel(own["bias"], 3)


def _batch_norm(layer, own, values, mean=None, variance=None):
    mean, variance = (own["mean"], own["variance"]) if mean is None else (mean, variance)
    scale = own["gamma"] / T.sqrt(variance + _constant(layer["epsilon"], values))
    mean, scale, beta = (_per_channel(vector, values.ndim) for vector in (mean, scale, own["beta"]))
    return (values - mean) * scale + beta


def batch_norm_training(layer, own, values):
    """The output under the batch's own statistics, and those: mean, biased variance, and how many values each was taken over."""
    axes = [axis for axis in range(values.ndim) if axis != (1 if values.ndim == 4 else values.ndim - 1)]
    mean = T.mean(values, axis=axes)
    variance = T.mean(T.sqr(values - _per_channel(mean, values.ndim)), axis=axes)
    count = T.prod([values.shape[axis] for axis in axes])
    return _batch_norm(layer, own, values, mean, variance), (mean, variance, count)


def _relu(_layer, _own, values):
    # T.nnet.relu passes half of the gradient at 0, and T.maximum all of it; written with `<=` a NaN stays one.
    zero = _constant(0, values)
    return T.switch(T.le(values, zero), zero, values)


def _padded(layer, images, value):
    (top, bottom), (left, right) = layer["padding"]
    if not (top or bottom or left or right):
        return images
    count, channels, height, width = (images.shape[axis] for axis in range(4))
    empty = T.alloc(_constant(value, images), count, channels, height + top + bottom, width + left + right)
    return T.set_subtensor(empty[:, :, top:top + height, left:left + width], images)


def _max_pool(layer, _own, images):
    """Written out, so that the gradient goes to the first maximum of a window; Theano's own goes to each of several equal ones."""
    images, size, stride = _padded(layer, images, -np.inf), layer["size"], layer["stride"]
    rows, columns = ((images.shape[axis] - size) // stride * stride + 1 for axis in (2, 3))
    largest = None
    for row in range(size):
        for column in range(size):
            values = images[:, :, row:row + rows:stride, column:column + columns:stride]
            largest = values if largest is None else T.switch(T.or_(T.gt(values, largest), T.isnan(values)), values, largest)
    return largest


def _own_max_pool(layer, _own, images):
    return _pool(layer, _padded(layer, images, -np.inf), "max")


def _pool(layer, images, mode):
    return pool_2d(images, (layer["size"],) * 2, stride=(layer["stride"],) * 2, ignore_border=True, mode=mode)


def _average_pool(layer, _own, images):
    inside = T.alloc(_constant(1, images), 1, 1, images.shape[2], images.shape[3])
    return _pool(layer, _padded(layer, images, 0), "sum") / T.addbroadcast(_pool(layer, _padded(layer, inside, 0), "sum"), 0, 1)


def _flatten(_layer, _own, values):
    return channels_last(values).flatten(2)


def _spatial(values):
    """(N, positions, channels) of images or sequences."""
    return channels_last(values).reshape((values.shape[0], -1, values.shape[1])) if values.ndim == 4 else values


def _global_max_pool(_layer, _own, values):
    """The value is the maximum; its gradient is shared out among equal ones, where Theano's own goes to each of them in full."""
    values = _spatial(values)
    largest = T.max(values, axis=1, keepdims=True)
    equal = T.cast(T.eq(values, largest), values.dtype)
    share = disconnected_grad(equal / T.sum(equal, axis=1, keepdims=True))
    return disconnected_grad(T.max(values, axis=1)) + T.sum(share * (values - disconnected_grad(values)), axis=1)


def _own_global_max_pool(_layer, _own, values):
    return T.max(_spatial(values), axis=1)


def _dense(_layer, own, features):
    return T.dot(features, own["kernel"]) + own["bias"]


def _embedding(layer, own, ids):
    return own["kernel"][ids.flatten()].reshape((ids.shape[0], ids.shape[1], layer["units"]))


def _hard_sigmoid(values):
    zero, fifth, half, one = (_constant(number, values) for number in (0, 0.2, 0.5, 1))
    return T.clip(fifth * values + half, zero, one)


_RECURRENT_ACTIVATION = {"sigmoid": T.nnet.sigmoid, "hard_sigmoid": _hard_sigmoid}


def _recurrent(layer, own, values, step, states, gates):
    """Scan over the steps; what comes from the input is one product for all of them."""
    length, units = values.shape[1], layer["units"]
    from_input = T.dot(values.reshape((-1, values.shape[2])), own["kernel"]) + own["bias"]
    from_input = from_input.reshape((values.shape[0], length, gates * units)).dimshuffle(1, 0, 2)
    start = T.unbroadcast(T.alloc(_constant(0, values), values.shape[0], units), 0, 1)
    others = [own[name] for name in ("recurrent_kernel", "recurrent_bias") if name in own]
    found, _ = theano.scan(step, from_input, [start] * states, others, name=layer["name"], strict=True)
    hidden = found[0] if states > 1 else found
    return hidden.dimshuffle(1, 0, 2) if layer["return_sequences"] else hidden[-1]


def _lstm(layer, own, values):
    gate, units = _RECURRENT_ACTIVATION[layer["recurrent_activation"]], layer["units"]

    def step(from_input, hidden, cell, kernel):
        i, f, g, o = _split(from_input + T.dot(hidden, kernel), units, 4)
        cell = gate(f) * cell + gate(i) * T.tanh(g)
        return gate(o) * T.tanh(cell), cell

    return _recurrent(layer, own, values, step, 2, 4)


def _gru(layer, own, values):
    gate, units = _RECURRENT_ACTIVATION[layer["recurrent_activation"]], layer["units"]

    def reset_after(from_input, hidden, kernel, bias):
        from_hidden = T.dot(hidden, kernel) + bias
        z, r = _split(gate((from_input + from_hidden)[:, :2 * units]), units, 2)
        return mixed(z, hidden, from_input[:, 2 * units:] + r * from_hidden[:, 2 * units:])

    def reset_before(from_input, hidden, kernel):
        z, r = _split(gate(from_input[:, :2 * units] + T.dot(hidden, kernel[:, :2 * units])), units, 2)
        return mixed(z, hidden, from_input[:, 2 * units:] + T.dot(r * hidden, kernel[:, 2 * units:]))

    def mixed(z, hidden, candidate):
        return z * hidden + (_constant(1, z) - z) * T.tanh(candidate)

    return _recurrent(layer, own, values, reset_after if layer["reset_after"] else reset_before, 1, 3)


def _split(values, units, parts):
    return [values[:, part * units:(part + 1) * units] for part in range(parts)]


APPLY = {
    "input": lambda layer, own, images: channels_first(images),
    "tokens": lambda layer, own, ids: ids,
    "normalize": _normalize,
    "conv2d": _conv2d,
    "conv1d": _conv1d,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "embedding": _embedding,
    "lstm": _lstm,
    "gru": _gru,
    "relu": _relu,
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "global_max_pool": _global_max_pool,
    "flatten": _flatten,
    "add": lambda layer, own, left, right: left + right,
    "concatenate": lambda layer, own, *parts: T.concatenate(parts, axis=1 if parts[0].ndim == 4 else parts[0].ndim - 1),
}
# What differs where a network takes what Theano does unless told.
OWN = {"max_pool": _own_max_pool, "global_max_pool": _own_global_max_pool}
