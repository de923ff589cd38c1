"""Keras: a `.keras` archive or an HDF5 file, run by Keras on TensorFlow."""

import shutil
from collections import Counter
from pathlib import Path

from sweep.formats import _arrays, _files, _signature, saved_model

FACTS = {
    "distribution": "keras",
    "converters": ["tensorflow", "tf2onnx", "onnx"],
    "suffixes": [".keras", ".h5", ".hdf5"],
    "exports": ["keras", "saved_model", "onnx"],
    "float64": True,
    "layer_outputs": True,
}

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ARCHIVE = {"config.json", "metadata.json"}


class Session:
    """A Keras model as a function of one tensor."""

    def __init__(self, model):
        import tensorflow as tf

        self.model = model
        (given,) = model.inputs
        self.dtype, self.fixed_batch = given.dtype, given.shape[0]
        specification = tf.TensorSpec(given.shape, given.dtype, name="input")
        called = tf.function(lambda inputs: tf.nest.flatten(model(inputs, training=False)), input_signature=[specification])
        self.function = called.get_concrete_function()

    def run(self, inputs):
        """All outputs of one batch, joined."""
        import tensorflow as tf

        return _arrays.joined([output.numpy() for output in self.function(tf.constant(inputs))], len(inputs))


def recognise(path):
    return _files.start(path, len(_HDF5)) == _HDF5 or set(_files.members(path)) >= _ARCHIVE


def inspect(path):
    """What the file says of itself. Raises ValueError, one line: damaged, code or foreign classes in it, weights alone, or another number
    of inputs than one."""
    model = _load(path)
    operators = Counter(type(layer).__name__ for layer in model._flatten_layers(include_self=False))
    return _signature.details(path, _described(model.inputs), _described(model.outputs), operators)


def open(path, threads):
    """A session; `threads` are the whole process's, as for a SavedModel. Raises ValueError as `inspect` does."""
    saved_model.set_threads(threads)
    return Session(_load(path))


def predict(session, inputs, batch_size=256):
    """Outputs (N, ...) of inputs (N, ...) of the model's own type; several outputs are flattened and joined in the model's order."""
    return _arrays.predict(session.run, inputs, session.fixed_batch or batch_size, session.dtype)


def describe(session):
    """The policy of the model's arithmetic, and the threads, read back."""
    return dict(saved_model.describe(session), policy=str(session.model.dtype_policy.name))


def layer_outputs(path, threads, inputs):
    """Every tensor of floating point in the network's graph that follows from the inputs, by name, as float32 (N, ...), in order of
    execution."""
    saved_model.set_threads(threads)
    return saved_model.tensors(_graph(path), threads, inputs)


def predict64(path, inputs):
    """Outputs float64, of the same network with all its arithmetic in double precision. Raises ValueError where a layer has none."""
    return saved_model.exact(path, _graph(path), inputs)


def export(path, target, folder, details):
    """Write the file itself, the folder `saved_model` or `model.onnx`. Raises ValueError that names the source where a converter can't."""
    if target == "keras":
        shutil.copyfile(str(path), str(Path(folder) / Path(path).name))
        return Path(path).name
    return saved_model.write(path, _graph(path), target, folder)


def _graph(path):
    from sweep.formats import _tensorflow_graph

    return _tensorflow_graph.frozen(Session(_load(path)).function)


def _load(path):
    import keras

    from sweep.formats import _keras_file

    _files.check_size(path)
    _keras_file.check(path)
    try:
        model = keras.saving.load_model(str(path), compile=False, safe_mode=True)
        known = bool(model.inputs and model.outputs)
    except Exception as error:  # Keras's exceptions have no common root
        raise _files.damaged(path, error) from error
    if not known:
        raise ValueError("{} is a network without fixed inputs".format(path))
    return model


def _described(tensors):
    return [{"name": tensor.name, "shape": _signature.dimensions(tensor.shape), "dtype": str(tensor.dtype)} for tensor in tensors]
