"""Neutral layers as TensorFlow 1 computes them: its own Keras layers where there are parameters or windows, plain operators elsewhere."""

import numpy as np
import tensorflow as tf

from sweep.layers import same_padding, shapes

_LEAST_FUSED_EPSILON = 1.001e-5  # `tf.nn.fused_batch_norm` takes this where it's asked for less, and says nothing


def part(layer, recipe, dtype):
    """The Keras layer behind a neutral one, None where plain operators do; its variables come with its first call."""
    make = _PART.get(layer["kind"])
    return make(layer, recipe, dtype) if make else None


def apply(layer, keras_layer, inputs, training):
    """The output tensor of one layer on its input tensors. In training mode batch norms take the batch's statistics, and add the
    operators that move theirs to `keras_layer.updates`."""
    if layer["kind"] == "batch_norm":
        return keras_layer(inputs[0], training=training)
    if layer["kind"] in _APPLY:
        return _APPLY[layer["kind"]](layer, *inputs)
    return keras_layer(_padded(inputs[0], _explicit(layer)) if "padding" in layer else inputs[0])


def variables(layer, keras_layer):
    """Canonical parameter names of a layer by the variable that holds them: [(variable, (names,))]. Of two names each has a row."""
    if keras_layer is None or not keras_layer.weights:
        return []
    holder = keras_layer.cell if layer["kind"] in ("lstm", "gru") else keras_layer
    names = {"gamma": ("gamma",), "beta": ("beta",), "moving_mean": ("mean",), "moving_variance": ("variance",),
             "embeddings": ("kernel",), "kernel": ("kernel",), "recurrent_kernel": ("recurrent_kernel",), "bias": ("bias",)}
    if layer["kind"] == "gru" and layer["reset_after"]:
        names["bias"] = ("bias", "recurrent_bias")
    return [(getattr(holder, attribute), found) for attribute, found in names.items() if hasattr(holder, attribute)]


def _sides(padding):
    """One (before, after) per spatial axis."""
    return [tuple(side) for side in (padding if isinstance(padding[0], (list, tuple)) else [padding])]


def _explicit(layer):
    return [(0, 0)] * len(_sides(layer["padding"])) if layer["padding_mode"] == "same" else _sides(layer["padding"])


def with_padding_modes(layers):
    """The list with a `padding_mode`: `same` where TensorFlow's own SAME pads as a layer says, else `valid`, around explicit zeros."""
    sizes, found = shapes(layers), []
    for layer in layers:
        if "padding" in layer:
            sides, extents = _sides(layer["padding"]), sizes[layer["inputs"][0]][:-1]
            window = layer.get("kernel", layer.get("size"))
            same = any(map(any, sides)) and sides == [same_padding(extent, window, layer["stride"]) for extent in extents]
            layer = dict(layer, padding_mode="same" if same else "valid")
        found.append(layer)
    return found


def _padded(values, sides, value=0):
    if not any(map(any, sides)):
        return values
    return tf.pad(values, [(0, 0)] + sides + [(0, 0)], constant_values=value)


def _max_pool(layer, values):
    pool = tf.keras.layers.MaxPooling2D(layer["size"], layer["stride"], layer["padding_mode"])
    return pool(_padded(values, _explicit(layer), values.dtype.as_numpy_dtype(-np.inf)))


def _average_pool(layer, values):
    pool, sides = tf.keras.layers.AveragePooling2D(layer["size"], layer["stride"], layer["padding_mode"]), _explicit(layer)
    means = pool(_padded(values, sides))
    if not any(map(any, sides)):
        return means
    # Of a window that reaches over the edge only what's inside counts.
    inside = np.pad(np.ones(values.shape.as_list()[1:3]), sides, mode="constant")
    size, stride = layer["size"], layer["stride"]
    rows, columns = means.shape.as_list()[1:3]
    counted = [[inside[r * stride:r * stride + size, c * stride:c * stride + size].sum() for c in range(columns)] for r in range(rows)]
    return means * tf.constant(size * size / np.array(counted)[None, :, :, None], values.dtype)


def _normalize(layer, values):
    return (values - tf.constant(layer["mean"], values.dtype)) / tf.constant(layer["std"], values.dtype)


_APPLY = {
    "normalize": _normalize,
    "relu": lambda layer, values: tf.nn.relu(values),
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "global_max_pool": lambda layer, values: tf.reduce_max(values, axis=list(range(1, len(values.shape) - 1))),
    "flatten": lambda layer, values: tf.reshape(values, [-1, int(np.prod(values.shape.as_list()[1:]))]),
    "add": lambda layer, left, right: tf.add(left, right),
    "concatenate": lambda layer, *values: tf.concat(values, axis=-1),
}


def _batch_norm(layer, recipe, dtype):
    plain = np.dtype(dtype) == np.float64 or layer["epsilon"] < _LEAST_FUSED_EPSILON
    made = tf.keras.layers.BatchNormalization(
        epsilon=layer["epsilon"], name=layer["name"], dtype=dtype, fused=False if plain else None,
        # A Python float goes through float32 there, and 1 - 0.99 is off by 1e-6.
        momentum=layer["momentum"] if recipe == "defaults" else np.float64(layer["momentum"]),
    )
    if recipe != "defaults":
        # The fused kernel gives the unbiased variance, and this alone has the layer undo it before it moves its own.
        made._bessels_correction_test_only = False
    return made


def _convolution(kind):
    return lambda layer, recipe, dtype: kind(
        layer["filters"], layer["kernel"], layer["stride"], layer["padding_mode"], name=layer["name"], dtype=dtype,
        **_initializers(layer, recipe, "kernel"))


def _dense(layer, recipe, dtype):
    return tf.keras.layers.Dense(layer["units"], name=layer["name"], dtype=dtype, **_initializers(layer, recipe, "kernel"))


def _embedding(layer, recipe, dtype):
    return tf.keras.layers.Embedding(
        layer["vocabulary"], layer["units"], name=layer["name"], dtype=dtype, **_initializers(layer, recipe, "embeddings"))


def _lstm(layer, recipe, dtype):
    return tf.keras.layers.LSTM(
        layer["units"], recurrent_activation=layer["recurrent_activation"], return_sequences=layer["return_sequences"],
        name=layer["name"], dtype=dtype, **_initializers(layer, recipe, "kernel", "recurrent"))


def _gru(layer, recipe, dtype):
    return tf.keras.layers.GRU(
        layer["units"], recurrent_activation=layer["recurrent_activation"], return_sequences=layer["return_sequences"],
        reset_after=layer["reset_after"], name=layer["name"], dtype=dtype, **_initializers(layer, recipe, "kernel", "recurrent"))


def _initializers(layer, recipe, *of):
    """What isn't a kernel starts at the agreed constants by Keras' own defaults."""
    return {} if recipe == "defaults" else {which + "_initializer": _INITIALIZER[layer["initializer"]]() for which in of}


_INITIALIZER = {
    "glorot_uniform": tf.keras.initializers.glorot_uniform,
    "he_normal": tf.keras.initializers.he_normal,
    "uniform": lambda: tf.keras.initializers.RandomUniform(-0.05, 0.05),
}
_PART = {
    "batch_norm": _batch_norm,
    "conv2d": _convolution(tf.keras.layers.Conv2D),
    "conv1d": _convolution(tf.keras.layers.Conv1D),
    "dense": _dense,
    "embedding": _embedding,
    "lstm": _lstm,
    "gru": _gru,
}
KINDS = ("input", "tokens") + tuple(_PART) + tuple(_APPLY)
