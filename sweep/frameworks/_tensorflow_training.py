"""An epoch as one graph, and the optimizers' updates in it."""

import numpy as np
import tensorflow as tf

from sweep.frameworks import _training

_OWN_ADAM_EPSILON = 1e-7


def epoch_function(network, plan, examples):
    """A function (images, labels, order int32 (examples,), learning rate float64) -> (sum of the losses, number of hits) that trains
    the network for one epoch. A remainder of the examples is a last, smaller step of the same graph: every step has static shapes."""
    batch_size = plan["batch_size"]
    full, rest = divmod(examples, batch_size)
    variables = [variable.value for variable in network.trained]
    penalised = {network.locate(name)[0].path for name in _training.penalised(network.layers)}
    penalties = [2 * plan["l2"] if variable.path in penalised else 0 for variable in network.trained]
    update = _OPTIMIZER[plan["optimizer"]](plan, variables)

    def step(images, labels, batch, rate):
        truth = tf.gather(labels, batch)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            logits = network.apply(tf.cast(tf.gather(images, batch), network.inputs.dtype), training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(truth, logits)
            loss = tf.reduce_mean(losses)
        # An embedding's are sparse; the agreed formulas move every row.
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]
        gradients = [
            gradient + penalty * variable if penalty else gradient  # of l2 x the sum of the kernels' squares
            for gradient, variable, penalty in zip(gradients, variables, penalties)
        ]
        update(gradients, rate)
        hits = tf.math.count_nonzero(tf.equal(tf.argmax(logits, 1), truth))
        return tf.cast(loss, tf.float64) * len(batch), hits

    @tf.function
    def epoch(images, labels, order, rate):
        loss_sum, hits = tf.zeros((), tf.float64), tf.zeros((), tf.int64)
        for start in tf.range(0, full * batch_size, batch_size):
            loss, right = step(images, labels, tf.slice(order, [start], [batch_size]), rate)
            loss_sum, hits = loss_sum + loss, hits + right
        if rest:
            loss, right = step(images, labels, order[-rest:], rate)
            loss_sum, hits = loss_sum + loss, hits + right
        return loss_sum, hits

    return epoch


def _sgd(plan, variables):
    momentum = plan["momentum"]
    velocities = [tf.Variable(tf.zeros_like(variable)) for variable in variables] if momentum else [None] * len(variables)
    # Keras keeps the rate inside the velocity, the agreed formula outside: they part where the rate changes.
    kernel = tf.raw_ops.ResourceApplyKerasMomentum if plan["recipe"] == "defaults" else tf.raw_ops.ResourceApplyMomentum

    def update(gradients, rate):
        for variable, velocity, gradient in zip(variables, velocities, gradients):
            of_type = tf.cast(rate, variable.dtype)
            if momentum:
                share = tf.constant(momentum, variable.dtype)
                kernel(var=variable.handle, accum=velocity.handle, lr=of_type, grad=gradient, momentum=share)
            else:
                tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=of_type, delta=gradient)

    return update


def _adam(plan, variables):
    epsilon = _training.adam_epsilon(plan, _OWN_ADAM_EPSILON)
    firsts = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
    seconds = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
    steps = tf.Variable(0, dtype=tf.float64)
    dtype = variables[0].dtype
    # As the kernel rounds them, so that the bias correction below corrects exactly what it does.
    beta1, beta2 = (float(np.array(beta, dtype.as_numpy_dtype)) for beta in _training.ADAM_BETAS)

    def update(gradients, rate):
        count = steps.assign_add(1)
        correction = tf.sqrt(1 - beta2**count)
        step_size = rate * correction / (1 - beta1**count)
        # The kernel divides by sqrt(v) + epsilon before the second moment's bias correction, as Keras does; scaled, epsilon takes
        # the place that the agreed formula gives it.
        inner = tf.constant(epsilon, tf.float64) if plan["recipe"] == "defaults" else epsilon * correction
        for variable, first, second, gradient in zip(variables, firsts, seconds, gradients):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=first.handle, v=second.handle, beta1_power=tf.zeros((), dtype), beta2_power=tf.zeros((), dtype),
                lr=tf.cast(step_size, dtype), beta1=tf.constant(beta1, dtype), beta2=tf.constant(beta2, dtype),
                epsilon=tf.cast(inner, dtype), grad=gradient,
            )

    return update


_OPTIMIZER = {"sgd": _sgd, "adam": _adam}
OPTIMIZERS = tuple(_OPTIMIZER)
