"""TensorFlow 1 as a training framework: a static graph and a session for every model, with the Keras layers that it brings along."""

import logging
import os

import numpy as np
import tensorflow as tf

if not tf.__version__.startswith("1."):
    raise ModuleNotFoundError("TensorFlow 1 is needed, and {} is installed".format(tf.__version__), name="tensorflow")

from sweep.epoch import EpochReport
from sweep.frameworks import _tensorflow1_layers as native
from sweep.frameworks import _tensorflow1_network as network
from sweep.frameworks import _training
from sweep.frameworks._tensorflow1_training import OPTIMIZERS, Steps

FACTS = {
    "distribution": "tensorflow",
    "converters": [],
    "exports": ["native", "saved_model"],
    "layers": list(native.KINDS),
    "own": {
        "batch_norm": {"epsilon": 1e-3, "momentum": 0.99},
        "lstm": {"recurrent_activation": "hard_sigmoid"},
        "gru": {"recurrent_activation": "hard_sigmoid", "reset_after": False},
    },
    "variants": {},
    "optimizers": list(OPTIMIZERS),
    "gradients": ["loss", "class"],
    "float64": True,
    "processors": ["cpu", "gpu"] if tf.test.is_built_with_cuda() else ["cpu"],
    "options": {},
}

_CHUNK = 256  # images per pass where a caller states no batch size; bounds the memory


def configure(threads):
    """Threads, deterministic kernels and GPU memory as needed, for the sessions of this process.

    TensorFlow has one pool of threads in a process: what its first session asked for stays.
    """
    os.environ.update(TF_DETERMINISTIC_OPS="1", TF_CUDNN_DETERMINISTIC="1")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # each symbol of its own that it has renamed since is a warning
    network.SESSION.intra_op_parallelism_threads = threads


def processor():
    with tf.Session(graph=tf.Graph(), config=network.SESSION) as session:
        return "gpu" if any(device.device_type == "GPU" for device in session.list_devices()) else "cpu"


build = network.build
get_weights = network.get_weights
set_weights = network.set_weights


def count_parameters(model):
    return sum(part.count_params() for part in model.parts.values() if part is not None)


def train(model, images, labels, plan, permutations):
    """The contract's generator; the loss is the cross-entropy, without the l2 term."""
    _training.check(plan, FACTS["optimizers"], images, labels, permutations)
    steps, size = Steps(model, plan, images, labels), plan["batch_size"]
    for epoch in range(plan["epochs"]):
        order = steps.order() if permutations is None else permutations[epoch].astype(np.int32)
        rate = _training.learning_rate(plan, epoch)
        loss_sum = hits = 0
        for start in range(0, len(order), size):
            batch = order[start:start + size]
            loss, right = steps.run(batch, rate)
            loss_sum, hits = loss_sum + loss * len(batch), hits + right
        yield EpochReport(_training.finite(loss_sum / len(order), epoch), hits / len(order))


def weight_gradients(model, images, labels):
    arrays = model.call(network.weight_gradients, _of_type(model, images), np.asarray(labels, np.int64))
    return network.by_name(model, model.trained(), arrays)


def _of_type(model, images):
    return np.asarray(images, model.images.dtype.as_numpy_dtype)


def _in_chunks(model, make, size, images, *others):
    """What `make` computes, over chunks of the arrays."""
    return [
        model.call(make, _of_type(model, images[start:start + size]), *(np.asarray(other[start:start + size]) for other in others))
        for start in range(0, len(images), size)
    ]


def predict(model, images, batch_size=256):
    return np.concatenate(_in_chunks(model, network.logits, batch_size, images))


def loss_gradient(model, images, labels):
    return np.concatenate(_in_chunks(model, network.loss_gradient, _CHUNK, images, labels))


def class_gradient(model, images, classes=None):
    if classes is None:
        return np.concatenate(_in_chunks(model, network.class_gradients, _CHUNK, images))
    return np.concatenate(_in_chunks(model, network.class_gradient, _CHUNK, images, classes))


def layer_outputs(model, images):
    parts = _in_chunks(model, network.outputs, _CHUNK, images)
    return {layer["name"]: np.concatenate([part[layer["name"]] for part in parts]) for layer in model.layers}


def run_layer(model, name, inputs):
    """A session may be fed any tensor of the graph, and computes what's after it alone."""
    layer = next(layer for layer in model.layers if layer["name"] == name)
    read = [model.values[other] for other in layer["inputs"]] or [model.images]
    fed = {tensor: np.asarray(array, tensor.dtype.as_numpy_dtype) for tensor, array in zip(read, inputs)}
    return model.session.run(model.values[name], fed)


def save(model, folder):
    """A checkpoint of the first format, which is one file: the weights by their canonical names (a gru's two biases by the first)."""
    with model.graph.as_default():
        saver = network.saver(model)
        saver.save(model.session, os.path.join(str(folder), "model.ckpt"), write_meta_graph=False, write_state=False)
    return "model.ckpt"


def load(path, layers):
    """A network in the type that was saved. Raises tf.errors.OpError for a file that is no checkpoint."""
    kinds = tf.train.NewCheckpointReader(str(path)).get_variable_to_dtype_map()
    model = network.build(layers, "matched", 0, next(iter(kinds.values())).as_numpy_dtype)
    with model.graph.as_default():
        network.saver(model).restore(model.session, str(path))
    return model


def export(model, layers, target, folder):
    """Raises ValueError for a target that is none of FACTS["exports"]."""
    if target == "native":
        return save(model, folder)
    if target != "saved_model":
        raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))
    # Frozen: what the logits need alone, with constants in the place of variables, whatever a training has put in the graph.
    frozen = tf.graph_util.convert_variables_to_constants(model.session, model.graph.as_graph_def(), [model.logits.op.name])
    with tf.Session(graph=tf.Graph(), config=network.SESSION) as session:
        images, logits = tf.import_graph_def(frozen, return_elements=[model.images.name, model.logits.name], name="")
        tf.saved_model.simple_save(session, os.path.join(str(folder), "saved_model"), {"input": images}, {"logits": logits})
    return "saved_model"
