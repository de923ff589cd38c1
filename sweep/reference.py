"""A network's outputs in NumPy, straight from the neutral semantics: the independent reference that frameworks and runtimes are held to.

Written for clarity and float64; images go through in chunks, so that memory stays bounded whatever their number.
"""

import numpy as np


def logits(layers, weights, images, dtype=np.float64, chunk=32):
    """Logits (N, classes) of images (N, H, W, C) in [0, 1], computed in dtype."""
    return np.concatenate([_run(layers, weights, part, dtype, keep=False)[layers[-1]["name"]] for part in _chunks(images, chunk)])


def layer_outputs(layers, weights, images, dtype=np.float64, chunk=32):
    """Outputs of every layer by name, channels last, computed in dtype. All of them are held in memory: meant for few images."""
    parts = [_run(layers, weights, part, dtype, keep=True) for part in _chunks(images, chunk)]
    return {layer["name"]: np.concatenate([part[layer["name"]] for part in parts]) for layer in layers}


def own_weights(layer, weights, dtype=np.float64):
    """The parameters of one layer, by their names within it, in dtype."""
    return {name[len(layer["name"]) + 1:]: np.asarray(array, dtype)
            for name, array in weights.items() if name.rpartition("/")[0] == layer["name"]}


def apply(layer, own, *inputs):
    """The output of one layer from its own parameters (`own_weights`) and its inputs, channels last, in the dtype of both."""
    return _APPLY[layer["kind"]](layer, own, *inputs)


def _chunks(images, chunk):
    return [images[start:start + chunk] for start in range(0, len(images), chunk)]


def _run(layers, weights, images, dtype, keep):
    last_use = {name: position for position, layer in enumerate(layers) for name in layer["inputs"]}
    values = {}
    for position, layer in enumerate(layers):
        inputs = [values[name] for name in layer["inputs"]] or [np.asarray(images, None if layer["kind"] == "tokens" else dtype)]
        values[layer["name"]] = apply(layer, own_weights(layer, weights, dtype), *inputs)
        if not keep:
            for name in set(layer["inputs"]):
                if last_use[name] == position:
                    del values[name]
    return values


def _windows(images, size, stride):
    """Every window as a view (N, rows, columns, size, size, C)."""
    count, height, width, channels = images.shape
    by_image, by_row, by_column, by_channel = images.strides
    return np.lib.stride_tricks.as_strided(
        images,
        (count, (height - size) // stride + 1, (width - size) // stride + 1, size, size, channels),
        (by_image, by_row * stride, by_column * stride, by_row, by_column, by_channel),
        writeable=False,
    )


def _conv2d(layer, own, images):
    padded = np.pad(images, [(0, 0)] + [tuple(side) for side in layer["padding"]] + [(0, 0)], mode="constant")
    windows = _windows(padded, layer["kernel"], layer["stride"])
    columns = windows.reshape(-1, int(np.prod(windows.shape[3:])))
    return columns.dot(own["kernel"].reshape(-1, layer["filters"])).reshape(windows.shape[:3] + (-1,)) + own["bias"]


def _conv1d(layer, own, values):
    padded = np.pad(values, [(0, 0), tuple(layer["padding"]), (0, 0)], mode="constant")
    count, steps, channels = padded.shape
    by_example, by_step, by_channel = padded.strides
    windows = np.lib.stride_tricks.as_strided(
        padded,
        (count, (steps - layer["kernel"]) // layer["stride"] + 1, layer["kernel"], channels),
        (by_example, by_step * layer["stride"], by_step, by_channel),
        writeable=False,
    )
    columns = windows.reshape(-1, layer["kernel"] * channels)
    return columns.dot(own["kernel"].reshape(-1, layer["filters"])).reshape(windows.shape[:2] + (-1,)) + own["bias"]


def _max_pool(layer, _own, images):
    return _windows(_padded(layer, images, -np.inf), layer["size"], layer["stride"]).max(axis=(3, 4))


def _average_pool(layer, _own, images):
    counted = _windows(_padded(layer, np.ones_like(images[:1, :, :, :1]), 0), layer["size"], layer["stride"]).sum(axis=(3, 4))
    return _windows(_padded(layer, images, 0), layer["size"], layer["stride"]).sum(axis=(3, 4)) / counted


def _padded(layer, images, value):
    sides = [(0, 0)] + [tuple(side) for side in layer["padding"]] + [(0, 0)]
    return np.pad(images, sides, mode="constant", constant_values=value)


def sigmoid(values):
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1, small) / (1 + small)


def _hard_sigmoid(values):
    return np.clip(values.dtype.type(0.2) * values + values.dtype.type(0.5), 0, 1)


_RECURRENT_ACTIVATION = {"sigmoid": sigmoid, "hard_sigmoid": _hard_sigmoid}


def _recurrent(step):
    """A recurrent layer from the function that makes the next states of one step."""

    def run(layer, own, values):
        gate = _RECURRENT_ACTIVATION[layer["recurrent_activation"]]
        states = [np.zeros((len(values), layer["units"]), values.dtype)] * 2
        outputs = []
        for position in range(values.shape[1]):
            states = step(own, gate, values[:, position], *states)
            outputs.append(states[0])
        return np.stack(outputs, axis=1) if layer["return_sequences"] else states[0]

    return run


def _lstm_step(own, gate, values, hidden, cell):
    i, f, g, o = np.split(values.dot(own["kernel"]) + hidden.dot(own["recurrent_kernel"]) + own["bias"], 4, axis=1)
    cell = gate(f) * cell + gate(i) * np.tanh(g)
    return gate(o) * np.tanh(cell), cell


def _gru_step(own, gate, values, hidden, _unused):
    units = hidden.shape[1]
    from_input = values.dot(own["kernel"]) + own["bias"]
    reset_after = "recurrent_bias" in own
    kernel = own["recurrent_kernel"]
    from_hidden = hidden.dot(kernel[:, :2 * units]) + (own["recurrent_bias"][:2 * units] if reset_after else 0)
    z, r = gate(from_input[:, :units] + from_hidden[:, :units]), gate(from_input[:, units:2 * units] + from_hidden[:, units:])
    if reset_after:
        candidate = r * (hidden.dot(kernel[:, 2 * units:]) + own["recurrent_bias"][2 * units:])
    else:
        candidate = (r * hidden).dot(kernel[:, 2 * units:])
    candidate = np.tanh(from_input[:, 2 * units:] + candidate)
    return z * hidden + (1 - z) * candidate, hidden


def _normalize(layer, _own, images):
    return (images - np.asarray(layer["mean"], images.dtype)) / np.asarray(layer["std"], images.dtype)


def _batch_norm(layer, own, images):
    scaled = (images - own["mean"]) / np.sqrt(own["variance"] + images.dtype.type(layer["epsilon"]))
    return scaled * own["gamma"] + own["beta"]


_APPLY = {
    "input": lambda layer, own, images: images,
    "tokens": lambda layer, own, ids: ids,
    "normalize": _normalize,
    "conv2d": _conv2d,
    "conv1d": _conv1d,
    "embedding": lambda layer, own, ids: own["kernel"][ids],
    "lstm": _recurrent(_lstm_step),
    "gru": _recurrent(_gru_step),
    "dense": lambda layer, own, features: features.dot(own["kernel"]) + own["bias"],
    "batch_norm": _batch_norm,
    "relu": lambda layer, own, values: np.maximum(values, 0),
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "global_max_pool": lambda layer, own, values: values.max(axis=tuple(range(1, values.ndim - 1))),
    "flatten": lambda layer, own, images: images.reshape(len(images), -1),
    "add": lambda layer, own, left, right: left + right,
    "concatenate": lambda layer, own, *parts: np.concatenate(parts, axis=-1),
}
