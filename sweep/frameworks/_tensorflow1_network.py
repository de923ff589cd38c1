"""A neutral layer list as a static graph with a session of its own, and its weights in the canonical layout."""

import numpy as np
import tensorflow as tf

from sweep import initial
from sweep.frameworks import _tensorflow1_layers as native
from sweep.frameworks._weights import checked
from sweep.layers import parameters

SESSION = tf.ConfigProto(inter_op_parallelism_threads=1)  # of every session; `configure` adds the threads
SESSION.gpu_options.allow_growth = True


class Network:
    """The graph with its variables, and the session that holds their values. `call` adds to the graph what is asked for."""

    def __init__(self, layers, recipe, seed, dtype):
        self.layers, self.dtype = layers, tf.as_dtype(dtype)
        self.graph = tf.Graph()
        self._calls = {}
        self._exact = native.with_padding_modes(layers)
        with self.graph.as_default():
            tf.set_random_seed(seed)
            self.parts = {layer["name"]: native.part(layer, recipe, dtype) for layer in self._exact}
            of_input = tf.int32 if layers[0]["kind"] == "tokens" else self.dtype
            self.images = tf.placeholder(of_input, [None] + list(layers[0]["shape"]), name="input")
            self.labels = tf.placeholder(tf.int64, [None], name="labels")
            self.values = self.apply_each(self.images)
            self.logits = self.values[layers[-1]["name"]]
            self.held = [  # (variable, canonical names), in the order of the list
                (variable, tuple(layer["name"] + "/" + name for name in names))
                for layer in layers for variable, names in native.variables(layer, self.parts[layer["name"]])
            ]
            self.session = tf.Session(graph=self.graph, config=SESSION)
            self.session.run([variable.initializer for variable, _ in self.held])

    def apply_each(self, images, training=False):
        """The output tensor of every layer by name, for a tensor of inputs."""
        values = {}
        for layer in self._exact:
            name = layer["name"]
            if layer["inputs"]:
                values[name] = native.apply(layer, self.parts[name], [values[other] for other in layer["inputs"]], training)
            else:
                values[name] = tf.identity(images)  # what is fed can't be fetched
        return values

    def apply_in_training(self, images):
        """Logits as a training computes them, and the operators that move the batch norms' statistics with them."""
        norms = [self.parts[layer["name"]] for layer in self.layers if layer["kind"] == "batch_norm"]
        before = [len(norm.updates) for norm in norms]
        logits = self.apply_each(images, training=True)[self.layers[-1]["name"]]
        return logits, [update for norm, count in zip(norms, before) for update in norm.updates[count:]]

    def trained(self):
        """[(variable, canonical names)] without moving statistics."""
        return [(variable, names) for variable, names in self.held if not names[0].endswith(("/mean", "/variance"))]

    def call(self, make, *arrays):
        """What `make(network)` -> (tensors, placeholders) computes of arrays; it's added to the graph when it's first called."""
        if make not in self._calls:
            with self.graph.as_default():
                self._calls[make] = self.session.make_callable(*make(self))
        return self._calls[make](*arrays)


def logits(network):
    return network.logits, [network.images]


def outputs(network):
    return network.values, [network.images]


def loss_gradient(network):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=network.labels, logits=network.logits)
    return tf.gradients(losses, network.images)[0], [network.images, network.labels]


def class_gradient(network):
    chosen = tf.one_hot(network.labels, network.logits.shape[1].value, dtype=network.dtype)
    return tf.gradients(network.logits, network.images, chosen)[0], [network.images, network.labels]


def class_gradients(network):
    count = network.logits.shape[1].value

    def one(index):
        # The backward pass is built once, inside the loop, over the one forward pass outside it.
        chosen = tf.ones_like(network.logits) * tf.one_hot(index, count, dtype=network.dtype)
        return tf.gradients(network.logits, network.images, chosen)[0]

    each = tf.map_fn(one, tf.range(count), dtype=network.dtype, back_prop=False)
    return tf.transpose(each, [1, 0, 2, 3, 4]), [network.images]


def weight_gradients(network):
    """By the variables of `Network.trained`, dense."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=network.labels, logits=network.apply_in_training(network.images)[0])
    gradients = tf.gradients(tf.reduce_mean(losses), [variable for variable, _ in network.trained()])
    return [tf.convert_to_tensor(gradient) for gradient in gradients], [network.images, network.labels]


def build(layers, recipe, seed, dtype="float32"):
    """A freshly initialised Network. The numbers come from the framework's generator unless the recipe is `identical`."""
    network = Network(layers, recipe, seed, dtype)
    if recipe == "identical":
        set_weights(network, initial.weights(layers, seed))
    return network


def by_name(network, held, arrays):
    """Canonical arrays, in the order of the list, of the arrays of [(variable, canonical names)]."""
    found = {}
    for (_, names), array in zip(held, arrays):
        found.update(zip(names, array if len(names) > 1 else [array]))
    return {name: np.array(found[name]) for name in parameters(network.layers) if name in found}


def get_weights(network):
    """Copies of the weights; Keras' own layout is the canonical one, but that it stacks a gru's two biases."""
    return by_name(network, network.held, network.session.run([variable for variable, _ in network.held]))


def set_weights(network, weights):
    """The reverse. Raises ValueError that names the parameter where one is missing, unknown or of another shape."""
    arrays = checked(network.layers, weights)
    # The initialisers take what they are fed in the place of what they would draw.
    fed = {
        variable.initializer.inputs[1]: np.stack([arrays[name] for name in names]) if len(names) > 1 else arrays[names[0]]
        for variable, names in network.held
    }
    network.session.run([variable.initializer for variable, _ in network.held], fed)


def saver(network):
    """Of the weights alone, whatever else a training has put in the graph."""
    return tf.train.Saver({names[0]: variable for variable, names in network.held}, write_version=tf.train.SaverDef.V1)
