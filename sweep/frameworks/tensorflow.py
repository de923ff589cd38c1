"""TensorFlow 2 with Keras 3 models as a training framework."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from sweep.epoch import EpochReport
from sweep.frameworks import _tensorflow_network as network
from sweep.frameworks import _tensorflow_operators as operators
from sweep.frameworks import _training
from sweep.frameworks._tensorflow_training import OPTIMIZERS, epoch_function

FACTS = {
    "distribution": "tensorflow",
    "converters": ["onnx", "tf2onnx"],
    "exports": ["native", "onnx", "saved_model"],
    "layers": list(network.KINDS),
    "operators": operators.FAMILIES,
    "operators_together": 1,
    "own": {
        "batch_norm": {"epsilon": 1e-3, "momentum": 0.99},
        "lstm": {"recurrent_activation": "sigmoid"},
        "gru": {"recurrent_activation": "sigmoid", "reset_after": True},
    },
    "variants": {},
    "optimizers": list(OPTIMIZERS),
    "gradients": ["loss", "class"],
    "float64": True,
    "processors": ["cpu", "gpu"] if tf.test.is_built_with_cuda() else ["cpu"],
    "options": {},
}

OPSET = 18  # of the exported ONNX file
_CHUNK = 256  # images per pass where a caller states no batch size; bounds the memory


def configure(threads):
    """Threads, deterministic kernels, full float32 arithmetic (no TF32) and GPU memory as needed, for this process.

    Raises RuntimeError where TensorFlow has already started with other settings.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(False)


def processor():
    return "gpu" if tf.config.list_physical_devices("GPU") else "cpu"


def build(layers, recipe, seed, dtype="float32"):
    return network.build(layers, recipe, seed, dtype)


def count_parameters(model):
    return model.model.count_params()


get_weights = network.get_weights
set_weights = network.set_weights
run_operator = operators.run
export_operators = operators.export


def train(model, images, labels, plan, permutations):
    """The contract's generator; the loss is the cross-entropy, without the l2 term."""
    _training.check(plan, FACTS["optimizers"], images, labels, permutations)
    examples = len(images) if permutations is None else len(permutations[0])
    epoch_pass = epoch_function(model, plan, examples)
    images, labels = tf.convert_to_tensor(images), tf.convert_to_tensor(labels, tf.int64)
    for epoch in range(plan["epochs"]):
        if permutations is None:
            order = tf.random.experimental.stateless_shuffle(tf.range(examples), seed=[plan["seed"], epoch])
        else:
            order = tf.convert_to_tensor(permutations[epoch].astype(np.int32))
        rate = tf.constant(_training.learning_rate(plan, epoch), tf.float64)
        loss_sum, hits = epoch_pass(images, labels, order, rate)
        yield EpochReport(_training.finite(loss_sum.numpy().item() / examples, epoch), hits.numpy().item() / examples)


def _chunks(model, images, size):
    for start in range(0, len(images), size):
        yield tf.convert_to_tensor(np.asarray(images[start:start + size], model.inputs.dtype.as_numpy_dtype))


def _joined(tensors):
    return (tensors[0] if len(tensors) == 1 else tf.concat(tensors, 0)).numpy()


def weight_gradients(model, images, labels):
    images = tf.convert_to_tensor(np.asarray(images, model.inputs.dtype.as_numpy_dtype))
    return network.weight_gradients(model, images, tf.convert_to_tensor(labels, tf.int64))


def predict(model, images, batch_size=256):
    return _joined([model.logits(part) for part in _chunks(model, images, batch_size)])


def loss_gradient(model, images, labels):
    return _joined([model.loss_gradient(part, of) for part, of in zip(_chunks(model, images, _CHUNK), _integers(labels))])


def class_gradient(model, images, classes=None):
    if classes is None:
        return _joined([model.class_gradients(part) for part in _chunks(model, images, _CHUNK)])
    return _joined([model.class_gradient(part, of) for part, of in zip(_chunks(model, images, _CHUNK), _integers(classes))])


def _integers(values):
    for start in range(0, len(values), _CHUNK):
        yield tf.convert_to_tensor(values[start:start + _CHUNK], tf.int64)


def layer_outputs(model, images):
    parts = [model.outputs(part) for part in _chunks(model, images, _CHUNK)]
    return {layer["name"]: _joined([part[layer["name"]] for part in parts]) for layer in model.layers}


def run_layer(model, name, inputs):
    dtype = model.dtype.as_numpy_dtype
    given = [tf.convert_to_tensor(array if array.dtype.kind == "i" else np.asarray(array, dtype)) for array in inputs]
    return model.run_layer(name, given).numpy()


def save(model, folder):
    model.model.save(Path(folder) / "model.keras")
    return "model.keras"


def load(path, layers):
    """The network as it was saved. Keras' safe mode refuses a file that carries code."""
    return network.Network(keras.models.load_model(path, compile=False, safe_mode=True), layers)


def export(model, layers, target, folder):
    """Raises ValueError for a target that is none of FACTS["exports"]."""
    if target == "native":
        return save(model, folder)
    if target == "saved_model":
        return _export_saved_model(model, folder)
    if target == "onnx":
        return _export_onnx(model, folder)
    raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))


def _export_saved_model(model, folder):
    archive = keras.export.ExportArchive()
    archive.track(model.model)
    archive.add_endpoint("serve", model.serve)
    archive.write_out(Path(folder) / "saved_model", verbose=False)
    return "saved_model"


def _export_onnx(model, folder):
    # Here, since training and predicting don't need the converter.
    import onnx
    import tf2onnx

    exported, _ = tf2onnx.convert.from_function(model.serve, input_signature=[model.inputs], opset=OPSET)
    onnx.save(exported, Path(folder) / "model.onnx")
    return "model.onnx"
