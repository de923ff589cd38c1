"""SavedModel: a folder with TensorFlow's graph of a model and its variables.

It is read as a graph, by the loader of TensorFlow 1: today's builds Python objects from what else is in the folder, and fails on models
with an optimizer of Keras 2. Before that, everything that loading or calling would run is looked through for operators that reach beyond
the model.
"""

import os
from collections import Counter
from pathlib import Path

import numpy as np

from sweep.formats import _arrays, _files, _signature

FACTS = {
    "distribution": "tensorflow",
    "converters": ["tf2onnx", "onnx"],
    "suffixes": [""],
    "exports": ["saved_model", "onnx"],
    "float64": True,
    "layer_outputs": True,
}

_THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"
FILES = {"saved_model": "saved_model", "onnx": "model.onnx"}


class Session:
    """A graph that TensorFlow runs."""

    def __init__(self, session):
        self._session = session
        self.dtype, self.fixed_batch = session.dtype, session.shape and session.shape[0]

    def run(self, inputs):
        """All outputs of one batch, joined."""
        return _arrays.joined(self._session.run(inputs), len(inputs))


def recognise(path):
    return (Path(str(path)) / "saved_model.pb").is_file()


def inspect(path):
    """What the signature says. Raises ValueError, one line: damaged, no signature to serve, an operator that reaches beyond the model or
    is unknown, or another number of inputs than one."""
    _files.check_size(path)
    graph, (inputs, outputs) = _read(path)
    return _signature.details(path, inputs, outputs, Counter(node.op for node in graph.definition.node))


def open(path, threads):
    """A session; `threads` are the whole process's (`set_threads`). Raises ValueError for a damaged folder."""
    from sweep.formats import _tensorflow_graph

    set_threads(threads)
    graph, _described = _read(path)
    return Session(_tensorflow_graph.Session(graph, threads))


def predict(session, inputs, batch_size=256):
    """Outputs (N, ...) of inputs (N, ...) of the model's own type; several outputs are flattened and joined in the order of their names."""
    return _arrays.predict(session.run, inputs, session.fixed_batch or batch_size, session.dtype)


def describe(session):
    """The threads, read back; where they were not set, from what TensorFlow takes them from."""
    import tensorflow as tf

    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return {"intra_op_threads": threads or int(os.environ.get(_THREADS_VARIABLE, 0))}


def layer_outputs(path, threads, inputs):
    """Every tensor of floating point that follows from the inputs, by name, as float32 (N, ...), in order of execution."""
    set_threads(threads)
    graph, _described = _read(path)
    return tensors(graph, threads, inputs)


def tensors(graph, threads, inputs):
    """`layer_outputs` of a `_tensorflow_graph.Graph`."""
    from sweep.formats import _collecting, _tensorflow_graph

    names = _tensorflow_graph.following(graph)
    session = _tensorflow_graph.Session(graph._replace(outputs=names), threads)
    batch = session.shape[0] if session.shape else None
    return _collecting.collected(session.run, names, inputs.astype(session.dtype), batch)


def predict64(path, inputs):
    """Outputs float64, of the same graph with all its arithmetic in double precision. Raises ValueError where an operator has none."""
    return exact(path, _read(path)[0], inputs)


def export(path, target, folder, details):
    """Write the folder `saved_model`, with the graph, one signature and nothing else, or `model.onnx`. Raises ValueError that names the
    source where a converter can't."""
    return write(path, _read(path)[0], target, folder)


def exact(path, graph, inputs):
    """`predict64` of a `_tensorflow_graph.Graph`."""
    from sweep.formats import _tensorflow_graph

    try:
        outputs = _tensorflow_graph.predict64(graph, inputs)
    except Exception as error:  # TensorFlow's exceptions have no common root
        raise ValueError("{} can't be evaluated in float64: {}".format(path, _files.one_line(error))) from error
    return np.concatenate([_arrays.joined(each, 1, np.float64) for each in outputs])


def write(path, graph, target, folder):
    """`export` of a `_tensorflow_graph.Graph`."""
    from sweep.formats import _tensorflow_graph

    if target not in FILES:
        raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FILES)))
    writer = _tensorflow_graph.write_saved_model if target == "saved_model" else _tensorflow_graph.write_onnx
    try:
        writer(graph, Path(folder) / FILES[target])
    except Exception as error:  # the converters' exceptions have no common root
        raise _files.damaged(path, error) from error
    return FILES[target]


def set_threads(threads):
    """Threads of the whole process. Once TensorFlow has run they stay what its environment said, and RuntimeError is raised for others."""
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
        if os.environ.get(_THREADS_VARIABLE) != str(threads):
            raise


def _read(path):
    from sweep.formats import _saved_model_graph

    return _saved_model_graph.read(path)
