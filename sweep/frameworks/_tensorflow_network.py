"""A neutral layer list as a Keras functional model, its graph functions, and its weights in the canonical layout."""

import math

import keras
import tensorflow as tf

from sweep import initial
from sweep.frameworks import _tensorflow_layers as keras_layers
from sweep.frameworks._weights import checked
from sweep.layers import BATCH_NORM_STATE, parameters, shapes

KINDS = keras_layers.KINDS


class Network:
    """A Keras model with its layer list, and the graph functions over it; each is traced once, when it is first called.

    The functions walk the list through the Keras layers and their variables, but for the few kinds that TensorFlow has better
    operators for.
    """

    def __init__(self, model, layers):
        self.model, self.layers = model, layers
        self.dtype = tf.as_dtype(model.output.dtype)
        self._parts = {layer.name: layer for layer in model.layers}
        self._named = {layer["name"]: layer for layer in layers}
        self.inputs = tf.TensorSpec(model.input.shape, model.input.dtype, name="input")
        integers = tf.TensorSpec([None], tf.int64)
        self.logits = tf.function(self.apply, input_signature=[self.inputs])
        self.serve = tf.function(lambda images: {"logits": self.apply(images)}, input_signature=[self.inputs])
        self.outputs = tf.function(self.apply_each, input_signature=[self.inputs])
        self.weight_gradients = tf.function(self._weight_gradients, input_signature=[self.inputs, integers])
        self.loss_gradient = tf.function(self._loss_gradient, input_signature=[self.inputs, integers])
        self.class_gradient = tf.function(self._class_gradient, input_signature=[self.inputs, integers])
        self.class_gradients = tf.function(self._class_gradients, input_signature=[self.inputs])

    def apply(self, inputs, training=False):
        """Logits (N, classes) of images (N, H, W, C) or token ids (N, steps)."""
        return self.apply_each(inputs, training)[self.layers[-1]["name"]]

    def apply_each(self, inputs, training=False):
        """The output of every layer by name; a graph drops those that nobody reads."""
        values = {}
        for layer in self.layers:
            given = [values[other] for other in layer["inputs"]] or [inputs]
            values[layer["name"]] = self._apply_layer(layer, given, training)
        return values

    def _apply_layer(self, layer, inputs, training):
        name, kind = layer["name"], layer["kind"]
        if kind in ("input", "tokens"):
            return inputs[0]
        if kind == "batch_norm" and _has_fused_kernel(inputs[0]):
            return _fused_batch_norm(self._parts[name], inputs[0], training)
        if kind == "batch_norm":
            return self._parts[name](inputs[0], training=training)
        if kind == "normalize":
            # Keras' layers for this hold their constants in float32 whatever their dtype.
            return (inputs[0] - tf.constant(layer["mean"], self.dtype)) / tf.constant(layer["std"], self.dtype)
        if kind == "flatten":
            # Keras computes the number of features while it runs, which converters then carry along as half a dozen operators.
            return tf.reshape(inputs[0], [-1, math.prod(inputs[0].shape[1:])])
        return keras_layers.call(self._parts, name, inputs)

    def run_layer(self, name, inputs):
        """The output of one layer alone, in inference mode."""
        return tf.function(lambda *given: self._apply_layer(self._named[name], given, training=False))(*inputs)

    def locate(self, name):
        """The Keras variable that holds a canonical parameter, and the row of it that does; None where it is the whole."""
        layer, _, parameter = name.rpartition("/")
        return keras_layers.locate(self._parts[layer], self._named[layer]["kind"], parameter)

    @property
    def trained(self):
        """The variables that are trained."""
        return self.model.trainable_variables

    def _weight_gradients(self, inputs, labels):
        variables = [variable.value for variable in self.trained]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.apply(inputs, training=True))
            loss = tf.reduce_mean(losses)
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]

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

        gradients = tf.map_fn(one, tf.range(count), fn_output_signature=self.inputs)
        return tf.transpose(gradients, [1, 0, 2, 3, 4])


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


def build(layers, recipe, seed, dtype):
    """A freshly initialised Network. The numbers come from the framework's generator unless the recipe is `identical`."""
    keras.utils.set_random_seed(seed)
    sizes, values = shapes(layers), {}
    for layer in layers:
        inputs = [values[name] for name in layer["inputs"]]
        parts = keras_layers.make(layer, recipe, dtype, *(sizes[name] for name in layer["inputs"]))
        values[layer["name"]] = keras_layers.call(parts, layer["name"], inputs) if inputs else parts[layer["name"]].output
    network = Network(keras.Model(values[layers[0]["name"]], values[layers[-1]["name"]]), layers)
    if recipe == "identical":
        set_weights(network, initial.weights(layers, seed))
    return network


def get_weights(network):
    """Copies of the weights; Keras' own layouts are the canonical ones."""
    found = {}
    for name in parameters(network.layers):
        variable, row = network.locate(name)
        found[name] = _part(variable.value.numpy(), row).copy()
    return found


def _part(array, row):
    return array if row is None else array[row]


def set_weights(network, weights):
    """The reverse. Raises ValueError that names the parameter where one is missing, unknown or of another shape."""
    for name, array in checked(network.layers, weights).items():
        variable, row = network.locate(name)
        if row is not None:
            whole = variable.value.numpy().copy()
            whole[row] = array
            array = whole
        variable.assign(array)


def weight_gradients(network, inputs, labels):
    """By canonical name, with the batch's statistics in batch norms, whose moving ones are as before afterwards."""
    state = [(variable, variable.value.numpy()) for variable in network.model.non_trainable_variables]
    computed = network.weight_gradients(inputs, labels)
    for variable, value in state:
        variable.assign(value)
    by_path = {variable.path: gradient.numpy() for variable, gradient in zip(network.trained, computed)}
    found = {}
    for name in parameters(network.layers):
        if not name.endswith(BATCH_NORM_STATE):
            variable, row = network.locate(name)
            found[name] = _part(by_path[variable.path], row).copy()
    return found
