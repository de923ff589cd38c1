"""A neutral layer list as a Keras functional model, its graph functions, and its weights in the canonical layout."""

import math

import keras
import tensorflow as tf

from sweep import initial
from sweep.frameworks._weights import checked
from sweep.layers import parameters, same_padding, shapes


class Network:
    """A Keras model with its layer list, and the graph functions over it; each is traced once, when it is first called.

    The functions walk the list through the Keras layers and their variables, but for the few kinds that TensorFlow has better
    operators for.
    """

    def __init__(self, model, layers):
        self.model, self.layers = model, layers
        self.dtype = tf.as_dtype(model.input.dtype)
        self._parts = {layer.name: layer for layer in model.layers}
        self.images = tf.TensorSpec(model.input.shape, self.dtype, name="input")
        integers = tf.TensorSpec([None], tf.int64)
        self.logits = tf.function(self.apply, input_signature=[self.images])
        self.serve = tf.function(lambda images: {"logits": self.apply(images)}, input_signature=[self.images])
        self.outputs = tf.function(self.apply_each, input_signature=[self.images])
        self.loss_gradient = tf.function(self._loss_gradient, input_signature=[self.images, integers])
        self.class_gradient = tf.function(self._class_gradient, input_signature=[self.images, integers])
        self.class_gradients = tf.function(self._class_gradients, input_signature=[self.images])

    def apply(self, images, training=False):
        """Logits (N, classes) of images (N, H, W, C)."""
        return self.apply_each(images, training)[self.layers[-1]["name"]]

    def apply_each(self, images, training=False):
        """The output of every layer by name; a graph drops those that nobody reads."""
        values = {}
        for layer in self.layers:
            name, inputs = layer["name"], [values[other] for other in layer["inputs"]]
            if layer["kind"] == "input":
                values[name] = images
            elif layer["kind"] == "batch_norm" and _has_fused_kernel(inputs[0]):
                values[name] = _fused_batch_norm(self._parts[name], inputs[0], training)
            elif layer["kind"] == "batch_norm":
                values[name] = self._parts[name](inputs[0], training=training)
            elif layer["kind"] == "normalize":
                # Keras' layers for this hold their constants in float32 whatever their dtype.
                values[name] = (inputs[0] - tf.constant(layer["mean"], self.dtype)) / tf.constant(layer["std"], self.dtype)
            elif layer["kind"] == "flatten":
                # Keras computes the number of features while it runs, which converters then carry along as half a dozen operators.
                values[name] = tf.reshape(inputs[0], [-1, math.prod(inputs[0].shape[1:])])
            else:
                values[name] = _call(self._parts, name, inputs)
        return values

    def _loss_gradient(self, images, labels):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(images)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.apply(images))
        return tape.gradient(losses, images)

    def _class_gradient(self, images, classes):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(images)
            chosen = tf.gather(self.apply(images), classes, batch_dims=1)
        return tape.gradient(chosen, images)

    def _class_gradients(self, images):
        with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
            tape.watch(images)
            logits = self.apply(images)
        count = logits.shape[1]

        def one(index):
            # The backward pass is traced once, inside the loop, over the one forward pass outside it.
            chosen = tf.broadcast_to(tf.one_hot(index, count, dtype=self.dtype), tf.shape(logits))
            return tape.gradient(logits, images, output_gradients=chosen)

        gradients = tf.map_fn(one, tf.range(count), fn_output_signature=self.images)
        return tf.transpose(gradients, [1, 0, 2, 3, 4])


def _call(parts, name, inputs):
    if name + _PADDING in parts:
        inputs = [parts[name + _PADDING](*inputs)]
    return parts[name](inputs if len(inputs) > 1 else inputs[0])


def _has_fused_kernel(values):
    return values.dtype == tf.float32 and len(values.shape) == 4


def _fused_batch_norm(part, values, training):
    """The Keras layer's arithmetic and its variables through TensorFlow's fused kernel, which the layer itself doesn't use."""
    result, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=values, scale=part.gamma, offset=part.beta, mean=[] if training else part.moving_mean,
        variance=[] if training else part.moving_variance, epsilon=part.epsilon, is_training=training,
    )
    if training:
        count = tf.cast(tf.size(values) // values.shape[-1], values.dtype)
        biased = variance * ((count - 1) / count)  # the kernel's is unbiased, Keras' moving variance follows the biased one
        part.moving_mean.assign(part.moving_mean * part.momentum + mean * (1 - part.momentum))
        part.moving_variance.assign(part.moving_variance * part.momentum + biased * (1 - part.momentum))
    return result


_PADDING = "_padding"


def build(layers, recipe, seed, dtype):
    """A freshly initialised Network. The numbers come from the framework's generator unless the recipe is `identical`."""
    keras.utils.set_random_seed(seed)
    sizes, values = shapes(layers), {}
    for layer in layers:
        inputs = [values[name] for name in layer["inputs"]]
        parts = {part.name: part for part in _PART[layer["kind"]](layer, recipe, dtype, *(sizes[name] for name in layer["inputs"]))}
        values[layer["name"]] = _call(parts, layer["name"], inputs) if inputs else parts[layer["name"]].output
    network = Network(keras.Model(values[layers[0]["name"]], values[layers[-1]["name"]]), layers)
    if recipe == "identical":
        set_weights(network, initial.weights(layers, seed))
    return network


def _input(layer, _recipe, dtype):
    return [keras.layers.InputLayer(layer["shape"], name=layer["name"], dtype=dtype)]


def _normalize(layer, _recipe, dtype, _shape):
    scale = [1 / std for std in layer["std"]]
    offset = [-mean / std for mean, std in zip(layer["mean"], layer["std"])]
    return [keras.layers.Rescaling(scale, offset, name=layer["name"], dtype=dtype)]


def _conv2d(layer, recipe, dtype, shape):
    padding = [tuple(side) for side in layer["padding"]]
    same = [same_padding(size, layer["kernel"], layer["stride"]) for size in shape[:2]]
    none = padding == [(0, 0), (0, 0)]
    explicit = [] if none or padding == same else [keras.layers.ZeroPadding2D(padding, name=layer["name"] + _PADDING, dtype=dtype)]
    mode = "valid" if none or explicit else "same"
    return [*explicit, keras.layers.Conv2D(layer["filters"], layer["kernel"], layer["stride"], mode, name=layer["name"], dtype=dtype,
                                           **_initializers(layer, recipe))]


def _dense(layer, recipe, dtype, _shape):
    return [keras.layers.Dense(layer["units"], name=layer["name"], dtype=dtype, **_initializers(layer, recipe))]


def _batch_norm(layer, _recipe, dtype, _shape):
    return [keras.layers.BatchNormalization(epsilon=layer["epsilon"], momentum=layer["momentum"], name=layer["name"], dtype=dtype)]


def _initializers(layer, recipe):
    if recipe == "defaults":
        return {}
    return {"kernel_initializer": _INITIALIZER[layer["initializer"]](), "bias_initializer": "zeros"}


_INITIALIZER = {"glorot_uniform": keras.initializers.GlorotUniform, "he_normal": keras.initializers.HeNormal}
_PART = {
    "input": _input,
    "normalize": _normalize,
    "conv2d": _conv2d,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "relu": lambda layer, recipe, dtype, shape: [keras.layers.ReLU(name=layer["name"], dtype=dtype)],
    "max_pool": lambda layer, recipe, dtype, shape: [
        keras.layers.MaxPooling2D(layer["size"], layer["stride"], name=layer["name"], dtype=dtype)
    ],
    "average_pool": lambda layer, recipe, dtype, shape: [
        keras.layers.AveragePooling2D(layer["size"], layer["stride"], name=layer["name"], dtype=dtype)
    ],
    "flatten": lambda layer, recipe, dtype, shape: [keras.layers.Flatten(name=layer["name"], dtype=dtype)],
    "add": lambda layer, recipe, dtype, left, right: [keras.layers.Add(name=layer["name"], dtype=dtype)],
}
KINDS = tuple(_PART)

_ATTRIBUTE = {"mean": "moving_mean", "variance": "moving_variance"}  # the other parameters are called alike


def _variable(network, name):
    layer, _, parameter = name.rpartition("/")
    return getattr(network.model.get_layer(layer), _ATTRIBUTE.get(parameter, parameter))


def get_weights(network):
    """Copies of the weights; Keras' own layout is the canonical one."""
    return {name: _variable(network, name).value.numpy().copy() for name in parameters(network.layers)}


def set_weights(network, weights):
    """The reverse. Raises ValueError that names the parameter where one is missing, unknown or of another shape."""
    for name, array in checked(network.layers, weights).items():
        _variable(network, name).assign(array)
