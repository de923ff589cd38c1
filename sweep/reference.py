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


def _chunks(images, chunk):
    return [images[start:start + chunk] for start in range(0, len(images), chunk)]


def _run(layers, weights, images, dtype, keep):
    last_use = {name: position for position, layer in enumerate(layers) for name in layer["inputs"]}
    values = {}
    for position, layer in enumerate(layers):
        inputs = [values[name] for name in layer["inputs"]] or [np.asarray(images, dtype)]
        own = {name[len(layer["name"]) + 1:]: np.asarray(array, dtype)
               for name, array in weights.items() if name.rpartition("/")[0] == layer["name"]}
        values[layer["name"]] = _APPLY[layer["kind"]](layer, own, *inputs)
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


def _normalize(layer, _own, images):
    return (images - np.asarray(layer["mean"], images.dtype)) / np.asarray(layer["std"], images.dtype)


def _batch_norm(layer, own, images):
    scaled = (images - own["mean"]) / np.sqrt(own["variance"] + images.dtype.type(layer["epsilon"]))
    return scaled * own["gamma"] + own["beta"]


_APPLY = {
    "input": lambda layer, own, images: images,
    "normalize": _normalize,
    "conv2d": _conv2d,
    "dense": lambda layer, own, features: features.dot(own["kernel"]) + own["bias"],
    "batch_norm": _batch_norm,
    "relu": lambda layer, own, values: np.maximum(values, 0),
    "max_pool": lambda layer, own, images: _windows(images, layer["size"], layer["stride"]).max(axis=(3, 4)),
    "average_pool": lambda layer, own, images: _windows(images, layer["size"], layer["stride"]).mean(axis=(3, 4)),
    "flatten": lambda layer, own, images: images.reshape(len(images), -1),
    "add": lambda layer, own, left, right: left + right,
}
