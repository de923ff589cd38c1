"""The kinds of neutral layers as flax modules and functions, and where these keep their canonical parameters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn


class GRUCell(nn.RNNCellBase):
    """The gated recurrent unit as the neutral list has it, in the canonical layout and with flax's initialisers.

    flax's own cell has no recurrent bias for z and r, and knows one order of reset and product.
    """

    features: int
    gate_fn: Any
    reset_after: bool
    dtype: Any

    @nn.compact
    def __call__(self, carry, inputs):
        wide = 3 * self.features
        kernel = self.param("kernel", _by_gate(nn.initializers.lecun_normal()), (inputs.shape[-1], wide), self.dtype)
        recurrent = self.param("recurrent_kernel", _by_gate(nn.initializers.orthogonal()), (self.features, wide), self.dtype)
        from_input = jnp.dot(inputs, kernel) + self.param("bias", nn.initializers.zeros, (wide,), self.dtype)
        for_gates, for_candidate = jnp.split(recurrent, [2 * self.features], axis=-1)
        if self.reset_after:
            bias = self.param("recurrent_bias", nn.initializers.zeros, (wide,), self.dtype)
            from_hidden = jnp.dot(carry, recurrent) + bias
        else:
            from_hidden = jnp.dot(carry, for_gates)
        both = self.gate_fn(from_input[..., :2 * self.features] + from_hidden[..., :2 * self.features])
        z, r = jnp.split(both, 2, axis=-1)
        reset = r * from_hidden[..., 2 * self.features:] if self.reset_after else jnp.dot(r * carry, for_candidate)
        hidden = z * carry + (1 - z) * jnp.tanh(from_input[..., 2 * self.features:] + reset)
        return hidden, hidden

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return jnp.zeros(input_shape[:-1] + (self.features,), self.dtype)

    @property
    def num_feature_axes(self):
        return 1


def _by_gate(initializer):
    """Draws each gate's kernel as one of its own."""

    def draw(key, shape, dtype):
        one = (shape[0], shape[1] // 3)
        return jnp.concatenate([initializer(part, one, dtype) for part in jax.random.split(key, 3)], axis=-1)

    return draw


def _hard_sigmoid(values):
    """0.2 x + 0.5 cut to [0, 1]; JAX's own has another slope."""
    return jnp.clip(0.2 * values + 0.5, 0, 1)


_GATE = {"sigmoid": nn.sigmoid, "hard_sigmoid": _hard_sigmoid}
OWN_NORM_EPSILON = 1e-5
OWN_NORM_MOMENTUM = 0.99


def module(layer, dtype, fast_variance):
    """The flax module of a layer that has parameters, else None. `fast_variance` is whether batch norms take E[x^2] - E[x]^2 for the
    variance, as flax does unless told."""
    make = _MODULE.get(layer["kind"])
    if layer["kind"] == "batch_norm":
        return make(layer, dtype, fast_variance)
    return make and make(layer, {"dtype": dtype, "param_dtype": dtype})


def _batch_norm(layer, dtype, fast_variance):
    return nn.BatchNorm(
        epsilon=layer["epsilon"], momentum=layer["momentum"], use_fast_variance=fast_variance, dtype=dtype, param_dtype=dtype
    )


def _lstm(layer, of_type):
    return nn.RNN(nn.OptimizedLSTMCell(layer["units"], gate_fn=_GATE[layer["recurrent_activation"]], **of_type))


def _gru(layer, of_type):
    return nn.RNN(GRUCell(layer["units"], _GATE[layer["recurrent_activation"]], layer["reset_after"], of_type["dtype"]))


_MODULE = {
    "conv2d": lambda layer, of_type: nn.Conv(
        layer["filters"], (layer["kernel"],) * 2, layer["stride"], tuple(tuple(side) for side in layer["padding"]), **of_type
    ),
    "conv1d": lambda layer, of_type: nn.Conv(
        layer["filters"], (layer["kernel"],), layer["stride"], (tuple(layer["padding"]),), **of_type
    ),
    "dense": lambda layer, of_type: nn.Dense(layer["units"], **of_type),
    "embedding": lambda layer, of_type: nn.Embed(layer["vocabulary"], layer["units"], **of_type),
    "lstm": _lstm,
    "gru": _gru,
    "batch_norm": _batch_norm,
}


def _normalize(layer, values):
    return (values - np.asarray(layer["mean"], values.dtype)) / np.asarray(layer["std"], values.dtype)


def _window(layer):
    return (layer["size"],) * 2, (layer["stride"],) * 2, [tuple(side) for side in layer["padding"]]


def _average_pool(layer, values):
    # nn.avg_pool counts in JAX's default dtype, which would make float64 of float32.
    sums, counts = (nn.pool(each, 0.0, jax.lax.add, *_window(layer)) for each in (values, jnp.ones_like(values[:1, :, :, :1])))
    return sums / counts


FUNCTION = {
    "input": lambda layer, values: values,
    "tokens": lambda layer, values: values,
    "normalize": _normalize,
    "relu": lambda layer, values: nn.relu(values),
    "max_pool": lambda layer, values: nn.max_pool(values, *_window(layer)),
    "average_pool": _average_pool,
    "global_max_pool": lambda layer, values: values.max(tuple(range(1, values.ndim - 1))),
    "flatten": lambda layer, values: values.reshape(values.shape[0], -1),
    "add": lambda layer, left, right: left + right,
    "concatenate": lambda layer, *parts: jnp.concatenate(parts, axis=-1),
}
KINDS = tuple(FUNCTION) + tuple(_MODULE)

_GATES = "ifgo"
_LSTM = {
    "kernel": [("cell", "i" + gate, "kernel") for gate in _GATES],
    "recurrent_kernel": [("cell", "h" + gate, "kernel") for gate in _GATES],
    "bias": [("cell", "h" + gate, "bias") for gate in _GATES],
}
_NAMES = {
    "batch_norm": {"gamma": "scale", "beta": "bias", "mean": "mean", "variance": "var"},
    "embedding": {"kernel": "embedding"},
}


def paths(kind, parameter):
    """Where flax keeps a canonical parameter within its layer's variables: its parts, side by side along the last axis."""
    if kind == "lstm":
        return _LSTM[parameter]
    if kind == "gru":
        return [("cell", parameter)]
    return [(_NAMES.get(kind, {}).get(parameter, parameter),)]
