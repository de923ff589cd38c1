"""A training as one operator that a session runs per step, and the optimizers' updates in it."""

import math

import numpy as np
import tensorflow as tf
from tensorflow.python.training import training_ops

from sweep.frameworks import _training

_OWN_ADAM_EPSILON = 1e-8  # of tf.train.AdamOptimizer


class Steps:
    """The steps of one training, with the examples held in the session. `run` takes one; `order` draws all examples' order."""

    def __init__(self, network, plan, images, labels):
        self._session = network.session
        self._count, self._scalars = 0, _SCALARS[plan["optimizer"]](plan, network.dtype.as_numpy_dtype)
        with network.graph.as_default():
            images = _held(network.session, np.asarray(images))
            labels = _held(network.session, np.asarray(labels, np.int64))
            # A generator of its own, so that every epoch is another order and every training with this seed the same.
            self._order = tf.random_shuffle(tf.range(tf.shape(labels)[0]), seed=plan["seed"])
            batch = tf.placeholder(tf.int32, [None])
            scalars = [tf.placeholder(tf.float64, []) for _ in range(2)]
            truth = tf.gather(labels, batch)
            logits, moves = network.apply_in_training(tf.cast(tf.gather(images, batch), network.images.dtype))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=truth, logits=logits)
            loss, hits = tf.reduce_mean(losses), tf.count_nonzero(tf.equal(tf.argmax(logits, 1), truth))
            variables = [variable for variable, _ in network.trained()]
            gradients = tf.gradients(loss, variables)
            if plan["l2"]:
                gradients = _with_penalty(network, plan["l2"], variables, gradients)
            known = set(tf.global_variables())
            update = _UPDATE[plan["optimizer"]](plan, variables, gradients, *scalars)
            made = [variable for variable in tf.global_variables() if variable not in known]
            self._session.run([variable.initializer for variable in made])
            self._step = self._session.make_callable([loss, hits, tf.group(update, *moves)], [batch] + scalars)

    def order(self):
        return self._session.run(self._order)

    def run(self, batch, rate):
        """One step on examples by index: (mean loss, number of hits), both before the update."""
        self._count += 1
        loss, hits, _ = self._step(batch, *self._scalars(self._count, rate))
        return float(loss), int(hits)


def _held(session, array):
    """The array as a variable, so that it goes to the device once; fed, since a graph holds no constant over 2 GiB."""
    given = tf.placeholder(array.dtype, array.shape)
    variable = tf.Variable(given, trainable=False, collections=[])
    session.run(variable.initializer, {given: array})
    return variable


def _with_penalty(network, l2, variables, gradients):
    """The gradients of l2 x the sum of the kernels' squares added."""
    penalised = _training.penalised(network.layers)
    names = [names[0] for _, names in network.trained()]
    return [
        gradient + 2 * l2 * variable if name in penalised else gradient
        for name, variable, gradient in zip(names, variables, gradients)
    ]


def _sgd(plan, variables, gradients, rate, _unused):
    # TensorFlow's momentum has the rate outside the velocity, as agreed. But where a gradient is sparse, as an embedding's, it lets the
    # velocities of the rows that a batch doesn't have rest: that is left to it under `defaults` alone.
    if plan["recipe"] != "defaults":
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    if plan["momentum"]:
        optimizer = tf.train.MomentumOptimizer(rate, tf.constant(plan["momentum"], tf.float64))
    else:
        optimizer = tf.train.GradientDescentOptimizer(rate)
    return optimizer.apply_gradients(zip(gradients, variables))


def _adam(plan, variables, gradients, rate, epsilon):
    if plan["recipe"] == "defaults":
        return tf.train.AdamOptimizer(rate, epsilon=epsilon).apply_gradients(zip(gradients, variables))
    updates = []
    for variable, gradient in zip(variables, gradients):
        dtype = variable.dtype.base_dtype
        first, second = (tf.Variable(tf.zeros(variable.shape, dtype), trainable=False, use_resource=True) for _ in range(2))
        none, beta1, beta2 = (tf.constant(value, dtype) for value in (0,) + _training.ADAM_BETAS)
        updates.append(training_ops.resource_apply_adam(
            variable.handle, first.handle, second.handle, none, none, tf.cast(rate, dtype), beta1, beta2, tf.cast(epsilon, dtype),
            tf.convert_to_tensor(gradient),
        ))
    return tf.group(*updates)


def _sgd_scalars(_plan, _dtype):
    return lambda count, rate: (rate, 0.0)


def _adam_scalars(plan, dtype):
    epsilon = _training.adam_epsilon(plan, _OWN_ADAM_EPSILON)
    if plan["recipe"] == "defaults":
        return lambda count, rate: (rate, epsilon)
    # Without its own bias correction, TensorFlow's kernel adds epsilon to sqrt(v) before the correction of v (the `epsilon hat` of
    # Kingma & Ba); scaled, epsilon takes the place that the agreed formula gives it.
    beta1, beta2 = (float(dtype(beta)) for beta in _training.ADAM_BETAS)  # as the kernel rounds them

    def corrected(count, rate):
        correction = math.sqrt(1 - beta2**count)
        return rate * correction / (1 - beta1**count), epsilon * correction

    return corrected


_UPDATE = {"sgd": _sgd, "adam": _adam}
_SCALARS = {"sgd": _sgd_scalars, "adam": _adam_scalars}
OPTIMIZERS = tuple(_UPDATE)
