"""Export of a JAX network as a SavedModel whose graph is one operator that holds StableHLO, by jax2tf.

Of what reads SavedModels, TensorFlow and its converter to TFLite alone know that operator.
"""

import jax
import numpy as np
import tensorflow as tf
from jax.experimental import jax2tf


def export(network, path):
    """Write the network for one input at a time: the converter has no gather for a free batch, and pads the graph with broadcasts."""
    graph = network.graph
    write(lambda variables, inputs: graph.apply(variables, inputs)[0], network.variables, graph.layers[0]["shape"], graph.input_dtype, path)


def write(apply, variables, shape, dtype, path):
    """Write a function of variables and one array (1, *shape)."""
    # Loops count in 64 bits otherwise, and for slices at such places the converter writes sizes of 32: they come out wrong.
    with jax.enable_x64(False):
        compute = jax2tf.convert(apply, with_gradient=False)
        module = tf.Module()
        module.weights = tf.nest.map_structure(tf.Variable, jax.tree.map(np.asarray, variables))
        inputs = tf.TensorSpec([1, *shape], dtype, name="input")
        serve = tf.function(lambda values: {"logits": compute(module.weights, values)}, input_signature=[inputs], autograph=False)
        tf.saved_model.save(module, str(path), signatures={"serving_default": serve.get_concrete_function()})
