"""Each kind of neutral layer as Keras layers, and where they keep the canonical parameters."""

import keras
import numpy as np
import tensorflow as tf

from sweep.layers import same_padding

_PADDING = "_padding"  # the name of a layer's own padding follows its name


@keras.saving.register_keras_serializable("sweep")
def hard_sigmoid(values):
    """0.2 x + 0.5 cut to [0, 1], as Keras had it before its third version."""
    return keras.ops.clip(0.2 * values + 0.5, 0, 1)


@keras.saving.register_keras_serializable("sweep")
class PaddedPooling2D(keras.layers.Layer):
    """A `max` or `mean` over windows of padded images; padding never is the maximum and does not count in the mean."""

    def __init__(self, function, size, stride, padding, **settings):
        super().__init__(**settings)
        self.function, self.size, self.stride, self.padding = function, size, stride, [list(side) for side in padding]

    def get_config(self):
        return dict(super().get_config(), function=self.function, size=self.size, stride=self.stride, padding=self.padding)

    def call(self, images):
        edges = [[0, 0], *self.padding, [0, 0]]
        if self.function == "max":
            return tf.nn.max_pool2d(tf.pad(images, edges, constant_values=-np.inf), self.size, self.stride, "VALID")
        inside = np.pad(np.ones((1, *images.shape[1:3], 1)), edges)
        share = tf.nn.avg_pool2d(tf.constant(inside, images.dtype), self.size, self.stride, "VALID")
        return tf.nn.avg_pool2d(tf.pad(images, edges), self.size, self.stride, "VALID") / share


def make(layer, recipe, dtype, *shapes):
    """The Keras layers of one resolved layer by name, in their order; the inputs have these shapes."""
    return {part.name: part for part in _PART[layer["kind"]](layer, recipe, dtype, *shapes)}


def call(parts, name, inputs):
    """The output of a layer through its Keras layers, which are among `parts` by name."""
    if name + _PADDING in parts:
        inputs = [parts[name + _PADDING](*inputs)]
    return parts[name](inputs if len(inputs) > 1 else inputs[0])


def _input(layer, _recipe, dtype):
    return [keras.layers.InputLayer(layer["shape"], name=layer["name"], dtype=dtype)]


def _tokens(layer, _recipe, _dtype):
    return [keras.layers.InputLayer(layer["shape"], name=layer["name"], dtype="int32")]


def _normalize(layer, _recipe, dtype, _shape):
    scale = [1 / std for std in layer["std"]]
    offset = [-mean / std for mean, std in zip(layer["mean"], layer["std"])]
    return [keras.layers.Rescaling(scale, offset, name=layer["name"], dtype=dtype)]


def _mode(padding, sizes, window, stride):
    """Keras' name for a padding, and whether it has one."""
    if not np.any(padding):
        return "valid", True
    return "same", [tuple(side) for side in padding] == [same_padding(size, window, stride) for size in sizes]


def _convolution(keras_layer, keras_padding, layer, padding, shape, recipe, dtype):
    mode, known = _mode(padding, shape[:-1], layer["kernel"], layer["stride"])
    edges = tuple(tuple(side) for side in padding)
    explicit = [] if known else [keras_padding(edges if len(edges) > 1 else edges[0], name=layer["name"] + _PADDING, dtype=dtype)]
    return [*explicit, keras_layer(layer["filters"], layer["kernel"], layer["stride"], mode if known else "valid", name=layer["name"],
                                   dtype=dtype, **_initializers(layer, recipe))]


def _conv2d(layer, recipe, dtype, shape):
    return _convolution(keras.layers.Conv2D, keras.layers.ZeroPadding2D, layer, layer["padding"], shape, recipe, dtype)


def _conv1d(layer, recipe, dtype, shape):
    return _convolution(keras.layers.Conv1D, keras.layers.ZeroPadding1D, layer, [layer["padding"]], shape, recipe, dtype)


def _dense(layer, recipe, dtype, _shape):
    return [keras.layers.Dense(layer["units"], name=layer["name"], dtype=dtype, **_initializers(layer, recipe))]


def _batch_norm(layer, _recipe, dtype, _shape):
    return [keras.layers.BatchNormalization(epsilon=layer["epsilon"], momentum=layer["momentum"], name=layer["name"], dtype=dtype)]


def _embedding(layer, recipe, dtype, _shape):
    given = {} if recipe == "defaults" else {"embeddings_initializer": _INITIALIZER[layer["initializer"]]()}
    return [keras.layers.Embedding(layer["vocabulary"], layer["units"], name=layer["name"], dtype=dtype, **given)]


def _gates(layer, recipe, dtype):
    """What lstm and gru have in common. Without cuDNN the gates' formulas and the rounding are the same on every processor."""
    activation = hard_sigmoid if layer["recurrent_activation"] == "hard_sigmoid" else layer["recurrent_activation"]
    given = {} if recipe == "defaults" else {"recurrent_initializer": _INITIALIZER[layer["initializer"]](), **_initializers(layer, recipe)}
    return dict(given, recurrent_activation=activation, return_sequences=layer["return_sequences"], use_cudnn=False, name=layer["name"],
                dtype=dtype)


def _lstm(layer, recipe, dtype, _shape):
    return [keras.layers.LSTM(layer["units"], **_gates(layer, recipe, dtype))]


def _gru(layer, recipe, dtype, _shape):
    return [keras.layers.GRU(layer["units"], reset_after=layer["reset_after"], **_gates(layer, recipe, dtype))]


def _pooling(keras_layer, function):
    def pool(layer, _recipe, dtype, shape):
        mode, known = _mode(layer["padding"], shape[:-1], layer["size"], layer["stride"])
        if known:
            return [keras_layer(layer["size"], layer["stride"], mode, name=layer["name"], dtype=dtype)]
        return [PaddedPooling2D(function, layer["size"], layer["stride"], layer["padding"], name=layer["name"], dtype=dtype)]

    return pool


def _global_max_pool(layer, _recipe, dtype, shape):
    over = {2: keras.layers.GlobalMaxPooling1D, 3: keras.layers.GlobalMaxPooling2D}[len(shape)]
    return [over(name=layer["name"], dtype=dtype)]


def _initializers(layer, recipe):
    if recipe == "defaults":
        return {}
    return {"kernel_initializer": _INITIALIZER[layer["initializer"]](), "bias_initializer": "zeros"}


_INITIALIZER = {
    "glorot_uniform": keras.initializers.GlorotUniform, "he_normal": keras.initializers.HeNormal,
    "uniform": lambda: keras.initializers.RandomUniform(-0.05, 0.05),
}
_PART = {
    "input": _input,
    "tokens": _tokens,
    "normalize": _normalize,
    "conv2d": _conv2d,
    "conv1d": _conv1d,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "embedding": _embedding,
    "lstm": _lstm,
    "gru": _gru,
    "relu": lambda layer, recipe, dtype, shape: [keras.layers.ReLU(name=layer["name"], dtype=dtype)],
    "max_pool": _pooling(keras.layers.MaxPooling2D, "max"),
    "average_pool": _pooling(keras.layers.AveragePooling2D, "mean"),
    "global_max_pool": _global_max_pool,
    "flatten": lambda layer, recipe, dtype, shape: [keras.layers.Flatten(name=layer["name"], dtype=dtype)],
    "add": lambda layer, recipe, dtype, left, right: [keras.layers.Add(name=layer["name"], dtype=dtype)],
    "concatenate": lambda layer, recipe, dtype, *shapes: [keras.layers.Concatenate(axis=-1, name=layer["name"], dtype=dtype)],
}
KINDS = tuple(_PART)

_ATTRIBUTE = {"mean": "moving_mean", "variance": "moving_variance"}  # the other parameters are called alike


def locate(part, kind, parameter):
    """The Keras variable that holds a canonical parameter, and the row of it that does; None where it is the whole."""
    if kind == "embedding":
        return part.embeddings, None
    if kind == "gru" and part.reset_after and parameter in ("bias", "recurrent_bias"):
        return part.cell.bias, int(parameter == "recurrent_bias")
    holder = part.cell if kind in ("lstm", "gru") else part
    return getattr(holder, _ATTRIBUTE.get(parameter, parameter)), None
