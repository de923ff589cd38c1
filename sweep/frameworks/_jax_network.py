"""A neutral layer list as flax modules under compiled functions, and its weights in the canonical layout.

Variables are flax's collections: {"params": {layer: ...}, "batch_stats": {layer: {"mean", "var"}}}.
"""

import functools
import json
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from sweep import initial
from sweep.frameworks import _jax_layers
from sweep.frameworks._weights import checked
from sweep.layers import BATCH_NORM_STATE, parameters, shapes


class Network:
    """A model: a graph and the variables it stands at."""

    def __init__(self, graph, variables):
        self.graph, self.variables = graph, variables


@functools.lru_cache(maxsize=8)
def _graph(layers, dtype, fast_variance):
    return Graph(json.loads(layers), jnp.dtype(dtype), fast_variance)


def graph(layers, dtype, fast_variance=False):
    """The graph of a list in a dtype; equal ones are shared, so that their functions are compiled once in a process."""
    return _graph(json.dumps(layers), dtype, fast_variance)


class Graph:
    """A layer list's functions of variables and inputs (N, ...), each compiled when it first meets a shape."""

    def __init__(self, layers, dtype, fast_variance):
        self.layers, self.dtype = layers, dtype
        self._layer = {layer["name"]: layer for layer in layers}
        self.input_dtype = self.dtype_read_by(layers[0]["name"])
        self._modules = {layer["name"]: _jax_layers.module(layer, dtype, fast_variance) for layer in layers}
        self.logits = jax.jit(lambda variables, images: self.apply(variables, images)[0])
        self.outputs = jax.jit(lambda variables, images: self.apply_each(variables, images)[0])
        self.alone = jax.jit(self._apply_one, static_argnums=0)
        self.loss_gradient = jax.jit(self._loss_gradient)
        self.class_gradient = jax.jit(self._class_gradient)
        self.class_gradients = jax.jit(self._class_gradients)
        self.weight_gradients = jax.jit(self._weight_gradients)

    def dtype_read_by(self, name):
        """The dtype of a layer's inputs."""
        return np.dtype(np.int32) if self._layer[name]["kind"] in ("tokens", "embedding") else self.dtype

    def apply(self, variables, images, training=False):
        """Logits (N, classes), and the moving statistics afterwards."""
        values, statistics = self.apply_each(variables, images, training)
        return values[self.layers[-1]["name"]], statistics

    def apply_each(self, variables, images, training=False):
        """The output of every layer by name, and the moving statistics afterwards; compiled code drops what nobody reads."""
        values, statistics = {}, {}
        for layer in self.layers:
            name, inputs = layer["name"], [values[other] for other in layer["inputs"]] or [images]
            if layer["kind"] == "batch_norm" and training:
                values[name], updated = self._modules[name].apply(
                    self._own(variables, name), *inputs, use_running_average=False, mutable=["batch_stats"]
                )
                statistics[name] = updated["batch_stats"]
            else:
                values[name] = self._apply_one(name, variables, inputs)
        return values, statistics

    def _apply_one(self, name, variables, inputs):
        layer = self._layer[name]
        if self._modules[name] is None:
            return _jax_layers.FUNCTION[layer["kind"]](layer, *inputs)
        options = {"use_running_average": True} if layer["kind"] == "batch_norm" else {}
        result = self._modules[name].apply(self._own(variables, name), *inputs, **options)
        return result if layer.get("return_sequences", True) else result[:, -1]

    @staticmethod
    def _own(variables, name):
        return {collection: each[name] for collection, each in variables.items() if name in each}

    def initialize(self, key):
        """Variables drawn by the modules' own initialisers."""
        sizes, variables = shapes(self.layers), {"params": {}, "batch_stats": {}}
        for position, layer in enumerate(self.layers):
            name = layer["name"]
            if self._modules[name] is None:
                continue
            inputs = jnp.zeros((1,) + sizes[layer["inputs"][0]], self.dtype_read_by(name))
            for collection, own in _initialize(self._modules[name], jax.random.fold_in(key, position), inputs).items():
                variables[collection][name] = own
        # flax makes moving statistics in float32 whatever its module's dtype.
        return jax.tree.map(lambda leaf: leaf.astype(self.dtype), variables)

    def losses(self, logits, labels):
        """Cross-entropy (N,)."""
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)

    def _loss_gradient(self, variables, images, labels):
        return jax.grad(lambda images: self.losses(self.apply(variables, images)[0], labels).sum())(images)

    def _class_gradient(self, variables, images, classes):
        return jax.grad(lambda images: jnp.take_along_axis(self.apply(variables, images)[0], classes[:, None], axis=1).sum())(images)

    def _class_gradients(self, variables, images):
        logits, pull_back = jax.vjp(lambda images: self.apply(variables, images)[0], images)
        # One class after the other over the one forward pass; examples don't meet in inference mode.
        each = jax.lax.map(lambda chosen: pull_back(jnp.broadcast_to(chosen, logits.shape))[0], jnp.eye(logits.shape[1], dtype=self.dtype))
        return jnp.moveaxis(each, 0, 1)

    def _weight_gradients(self, variables, images, labels):
        def loss(params):
            return self.losses(self.apply(dict(variables, params=params), images, training=True)[0], labels).mean()

        return jax.grad(loss)(variables["params"])


# What draws numbers runs once: compiling it takes most of a build, the more the harder the compiler tries.
_draws = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})


@functools.partial(_draws, static_argnums=0)
def _initialize(module, key, inputs):
    """A module's variables, by its own initialisers."""
    return module.init(key, inputs, **({"use_running_average": True} if isinstance(module, nn.BatchNorm) else {}))


def build(layers, recipe, seed, dtype="float32"):
    """A freshly initialised Network. The numbers come from JAX's generator unless the recipe is `identical`."""
    network = Network(graph(layers, dtype, fast_variance=recipe == "defaults"), None)
    if recipe == "defaults":
        network.variables = network.graph.initialize(jax.random.key(seed))
    elif recipe == "matched":
        set_weights(network, _matched(layers, jax.random.key(seed), network.graph.dtype))
    else:
        set_weights(network, initial.weights(layers, seed))
    return network


def _matched(layers, key, dtype):
    initializers = {layer["name"]: layer["initializer"] for layer in layers if "initializer" in layer}
    found = initial.constants(layers)
    for position, (name, shape) in enumerate(parameters(layers).items()):
        if name not in found:
            found[name] = _drawn(initializers[name.rpartition("/")[0]], jax.random.fold_in(key, position), shape, dtype)
    return found


@functools.partial(_draws, static_argnums=(0, 2, 3))
def _drawn(initializer, key, shape, dtype):
    return _INITIALIZER[initializer](key, shape, dtype)


_INITIALIZER = {
    "glorot_uniform": nn.initializers.glorot_uniform(),
    "he_normal": nn.initializers.he_normal(),
    "uniform": lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -0.05, 0.05),
}

_Place = namedtuple("_Place", "name shape paths")


def _places(layers):
    """Each canonical parameter with its paths in the variables."""
    kinds = {layer["name"]: layer["kind"] for layer in layers}
    for name, shape in parameters(layers).items():
        layer, _, parameter = name.rpartition("/")
        collection = "batch_stats" if parameter in BATCH_NORM_STATE else "params"
        yield _Place(name, shape, [(collection, layer) + path for path in _jax_layers.paths(kinds[layer], parameter)])


def canonical(layers, variables):
    """Copies in the canonical layout of those parameters that `variables` holds."""
    flat = flatten_dict(variables)
    return {
        place.name: np.concatenate([np.asarray(flat[path]) for path in place.paths], axis=-1)
        for place in _places(layers) if place.paths[0] in flat
    }


def get_weights(network):
    """Copies of the weights in canonical layout."""
    return canonical(network.graph.layers, network.variables)


def set_weights(network, weights):
    """The reverse. Raises ValueError that names the parameter where one is missing, unknown or of another shape."""
    arrays, flat = checked(network.graph.layers, weights), {}
    for place in _places(network.graph.layers):
        for path, part in zip(place.paths, np.split(arrays[place.name], len(place.paths), axis=-1)):
            flat[path] = jnp.array(part, network.graph.dtype, copy=True)  # without the copy a CPU's array lies in the caller's memory
    network.variables = dict({"params": {}, "batch_stats": {}}, **unflatten_dict(flat))
