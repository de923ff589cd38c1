"""A step of a training as one compiled function, and the optimizers in it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sweep.frameworks import _training

OPTIMIZERS = ("sgd", "adam")
_OWN_ADAM_EPSILON = 1e-8


class Trainer:
    """Variables and an optimizer's state, and the step over them: compiled once for full batches and once for a smaller, last one.

    A compiled loop over the steps would save their dispatch, but XLA's convolutions are several times slower within a loop on a CPU.
    """

    def __init__(self, graph, plan, variables):
        self._graph, self._batch_size = graph, plan["batch_size"]
        self._optimizer = _optimizer(plan, graph.layers)
        self.variables, self._moments = variables, self._optimizer.init(variables["params"])
        self._step = jax.jit(self._one_step, static_argnames="size", donate_argnames=("variables", "moments", "totals"))

    def epoch(self, images, labels, order, rate):
        """The sum of the losses and the number of hits of an epoch over the examples of `order`, int32 (M,), at a learning rate."""
        totals, rate = (jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int64)), np.asarray(rate, self._graph.dtype)
        for start in range(0, len(order), self._batch_size):
            size = min(self._batch_size, len(order) - start)
            self.variables, self._moments, totals = self._step(
                self.variables, self._moments, totals, images, labels, order, np.int32(start), rate, size=size
            )
        return tuple(total.item() for total in totals)

    def _one_step(self, variables, moments, totals, images, labels, order, start, rate, size):
        batch = jax.lax.dynamic_slice_in_dim(order, start, size)
        inputs, truth = images[batch].astype(self._graph.input_dtype), labels[batch]

        def loss(params):
            logits, statistics = self._graph.apply(dict(variables, params=params), inputs, training=True)
            return self._graph.losses(logits, truth).mean(), (logits, statistics)

        (mean, (logits, statistics)), gradients = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        updates, moments = self._optimizer.update(gradients, moments, variables["params"])
        params = jax.tree.map(lambda weight, update: weight - rate * update, variables["params"], updates)
        totals = (totals[0] + mean.astype(jnp.float64) * size, totals[1] + (logits.argmax(1) == truth).sum())
        return {"params": params, "batch_stats": statistics}, moments, totals


def _optimizer(plan, layers):
    """Gradients to what the weights lose, in units of the learning rate. optax has the agreed formulas."""
    if plan["optimizer"] == "adam":
        beta1, beta2 = _training.ADAM_BETAS
        scaled = optax.scale_by_adam(beta1, beta2, _training.adam_epsilon(plan, _OWN_ADAM_EPSILON))
    else:
        scaled = optax.trace(plan["momentum"]) if plan["momentum"] else optax.identity()
    # The gradient of l2 x the sum of the kernels' squares.
    return optax.chain(optax.add_decayed_weights(2 * plan["l2"], functools.partial(_decayed, layers)), scaled) if plan["l2"] else scaled


def _decayed(layers, params):
    chosen = _training.penalised(layers)
    return {layer: {name: layer + "/" + name in chosen for name in own} for layer, own in params.items()}
