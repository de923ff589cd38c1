"""JAX with flax (linen) modules and optax as a training framework."""

import importlib.metadata
import importlib.util
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from sweep.epoch import EpochReport
from sweep.frameworks import _jax_layers, _training
from sweep.frameworks import _jax_network as network
from sweep.frameworks import _jax_operators as operators
from sweep.frameworks._jax_training import OPTIMIZERS, Trainer

_PLUGINS = [plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")]  # how JAX itself finds what it can compute on
_ONNX = importlib.util.find_spec("jax2onnx") is not None
_XLA = importlib.util.find_spec("tensorflow") is not None

FACTS = {
    "distribution": "jax",
    "converters": ["onnx", "jax2onnx"] * _ONNX + ["tensorflow"] * _XLA,
    "exports": ["native"] + ["onnx"] * _ONNX + ["xla_saved_model"] * _XLA,
    "layers": list(_jax_layers.KINDS),
    "operators": operators.FAMILIES,
    "operators_together": 1,
    "own": {
        "batch_norm": {"epsilon": _jax_layers.OWN_NORM_EPSILON, "momentum": _jax_layers.OWN_NORM_MOMENTUM},
        "lstm": {"recurrent_activation": "sigmoid"},
        "gru": {"recurrent_activation": "sigmoid", "reset_after": True},
    },
    "variants": {},
    "optimizers": list(OPTIMIZERS),
    "gradients": ["loss", "class"],
    "float64": True,
    "processors": ["cpu", "gpu"] if any("cuda" in name or "rocm" in name for name in _PLUGINS) else ["cpu"],
    "options": {},
}

_CHUNK = 256  # inputs per pass where a caller states no batch size; bounds the memory
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
_configured = {}


def configure(threads):
    """Threads, deterministic kernels, full float32 arithmetic (no TF32) and float64 where a model asks for it, for this process.

    Raises RuntimeError where this process was configured with another number of threads.
    """
    if _configured.setdefault("threads", threads) != threads:
        raise RuntimeError("JAX runs with {} threads in this process".format(_configured["threads"]))
    os.environ["PJRT_NPROC"] = str(threads)  # read when the first computation starts the backend, as the flags are
    flags = os.environ.get("XLA_FLAGS", "").split()
    if _DETERMINISTIC not in flags:
        os.environ["XLA_FLAGS"] = " ".join(flags + [_DETERMINISTIC])
    jax.config.update("jax_default_matmul_precision", "highest")
    jax.config.update("jax_enable_x64", True)  # without it there is no float64; a float32 model names its dtype wherever it matters


def processor():
    return "gpu" if jax.default_backend() == "gpu" else "cpu"


build = network.build
get_weights = network.get_weights
set_weights = network.set_weights
run_operator = operators.run
export_operators = operators.export


def count_parameters(model):
    return sum(leaf.size for leaf in jax.tree.leaves(model.variables))


def train(model, images, labels, plan, permutations):
    """The contract's generator; the loss is the cross-entropy, without the l2 term."""
    _training.check(plan, FACTS["optimizers"], images, labels, permutations)
    examples = len(images) if permutations is None else permutations.shape[1]
    trainer = Trainer(model.graph, plan, model.variables)
    images, labels = jnp.asarray(images), jnp.asarray(labels, jnp.int32)
    shuffle = jax.random.key(plan["seed"])
    for epoch in range(plan["epochs"]):
        if permutations is None:
            order = jax.random.permutation(jax.random.fold_in(shuffle, epoch), jnp.arange(examples, dtype=jnp.int32))
        else:
            order = jnp.asarray(permutations[epoch], jnp.int32)
        loss_sum, hits = trainer.epoch(images, labels, order, _training.learning_rate(plan, epoch))
        model.variables = trainer.variables
        yield EpochReport(_training.finite(loss_sum / examples, epoch), hits / examples)


def weight_gradients(model, images, labels):
    inputs = np.asarray(images, model.graph.input_dtype)
    gradients = model.graph.weight_gradients(model.variables, inputs, np.asarray(labels, np.int32))
    return network.canonical(model.graph.layers, {"params": gradients})


def _by_parts(function, model, size, images, *others):
    """The function's outputs on parts of the inputs, joined; a tree of arrays (N, ...).

    Each shape is compiled for itself, so a part that is too small is filled with zeros: up to `size`, or to a power of two where it is
    the only one. An example's outputs don't depend on the others in its part.
    """
    count = len(images)
    size = size if count > size else min(size, 1 << (count - 1).bit_length())
    arrays = [np.asarray(images, model.graph.input_dtype)] + [np.asarray(other, np.int32) for other in others]
    parts = []
    for start in range(0, count, size):
        part = [array[start:start + size] for array in arrays]
        taken = len(part[0])
        part = [np.concatenate([array, np.zeros((size - taken,) + array.shape[1:], array.dtype)]) for array in part]
        parts.append(jax.tree.map(lambda output, taken=taken: np.asarray(output)[:taken], function(model.variables, *part)))
    return jax.tree.map(lambda *outputs: np.concatenate(outputs), *parts)


def predict(model, images, batch_size=256):
    return _by_parts(model.graph.logits, model, batch_size, images)


def loss_gradient(model, images, labels):
    return _by_parts(model.graph.loss_gradient, model, _CHUNK, images, labels)


def class_gradient(model, images, classes=None):
    if classes is None:
        return _by_parts(model.graph.class_gradients, model, _CHUNK, images)
    return _by_parts(model.graph.class_gradient, model, _CHUNK, images, classes)


def layer_outputs(model, images):
    found = _by_parts(model.graph.outputs, model, _CHUNK, images)
    return {layer["name"]: found[layer["name"]] for layer in model.graph.layers}


def run_layer(model, name, inputs):
    dtype = model.graph.dtype_read_by(name)
    return np.array(model.graph.alone(name, model.variables, [np.asarray(each, dtype) for each in inputs]))


def save(model, folder):
    (Path(folder) / "model.msgpack").write_bytes(serialization.msgpack_serialize(jax.tree.map(np.asarray, model.variables)))
    return "model.msgpack"


def load(path, layers):
    """The network for inference and gradients. Raises ValueError for a file that isn't of this network; msgpack carries no code."""
    variables = serialization.msgpack_restore(Path(path).read_bytes())
    model = network.Network(network.graph(layers, str(jax.tree.leaves(variables)[0].dtype)), None)
    set_weights(model, network.canonical(layers, variables))
    if jax.tree.structure(model.variables) != jax.tree.structure(variables):
        raise ValueError("{} holds more than the weights of this network".format(path))
    return model


def export(model, layers, target, folder):
    """Raises ValueError for a target that is none of FACTS["exports"]."""
    if target == "native":
        return save(model, folder)
    if target == "onnx" and _ONNX:
        from sweep.frameworks import _jax_onnx

        _jax_onnx.export(model, Path(folder) / "model.onnx")
        return "model.onnx"
    if target == "xla_saved_model" and _XLA:
        from sweep.frameworks import _jax_saved_model

        _jax_saved_model.export(model, Path(folder) / "saved_model")
        return "saved_model"
    raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))
