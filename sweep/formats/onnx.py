"""ONNX: run by ONNX Runtime without optimisations, as near to the file as it can be run.

Weights in further files are read from the model's own folder alone. The format has no magic number; what is recognised is the start of
its outermost message.
"""

import os
import shutil
from collections import Counter
from pathlib import Path

from sweep.formats import _arrays, _files, _signature

FACTS = {
    "distribution": "onnxruntime",
    "converters": ["onnx"],
    "suffixes": [".onnx"],
    "exports": ["onnx"],
    "float64": True,
    "layer_outputs": True,
}

FILE = "model.onnx"
EXACT_BATCH = 8  # the evaluator spends most of its time between operators; more would take much memory
_IR_VERSION, _FIELDS_AFTER_IT = 0x08, (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42)
_VERSIONS = range(3, 64)  # a SavedModel's message starts with the same field, and a 1 in it
_OWN_DOMAIN = ("", "ai.onnx")
_ERRORS_ONLY = 3


class Session:
    """An open model with the name and type of its one input."""

    def __init__(self, inference, threads):
        self.inference = inference
        self.threads = threads
        given = inference.get_inputs()[0]
        self.input, self.dtype = given.name, _dtype(given.type)
        self.fixed_batch = given.shape[0] if isinstance(given.shape[0], int) else None

    def run(self, inputs):
        """All outputs of one batch, joined."""
        return _arrays.joined(self.inference.run(None, {self.input: inputs}), len(inputs))


def recognise(path):
    start = _files.start(path, 3)
    return len(start) == 3 and start[0] == _IR_VERSION and start[1] in _VERSIONS and start[2] in _FIELDS_AFTER_IT


def inspect(path):
    """What the file says of itself. Raises ValueError, one line: damaged, weights outside its folder, an opset or operator that the
    runtime doesn't have, or another number of inputs than one."""
    import onnx.checker
    import onnx.defs

    _files.check_size(path)
    model = _load(path)
    newest = onnx.defs.onnx_opset_version()
    opset = max([entry.version for entry in model.opset_import if entry.domain in _OWN_DOMAIN] + [0])
    if opset > newest:
        raise ValueError("{} uses opset {}, and {} is the newest that is known here".format(path, opset, newest))
    beside = _beside(path, model)
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # the checker's exceptions have no common root
        raise _files.damaged(path, error) from error
    inference = _inference(path, 1)
    operators = Counter(node.op_type for node in _nodes(model))
    return _signature.details(path, _described(inference.get_inputs()), _described(inference.get_outputs()), operators, beside)


def open(path, threads):
    """A session that runs operators on `threads` threads, one operator at a time. Raises ValueError that names a damaged file."""
    return Session(_inference(path, threads), threads)


def predict(session, inputs, batch_size=256):
    """Outputs (N, ...) of inputs (N, ...) of the model's own type; several outputs are flattened and joined in the file's order."""
    return _arrays.predict(session.run, inputs, session.fixed_batch or batch_size, session.dtype)


def describe(session):
    """Runtime, threads and optimisations, read back from the session."""
    options = session.inference.get_session_options()
    return {
        "execution_providers": session.inference.get_providers(),
        "intra_op_threads": options.intra_op_num_threads,
        "graph_optimization_level": options.graph_optimization_level.name,
    }


def layer_outputs(path, threads, inputs):
    """Every tensor of floating point that follows from the inputs, by name, as float32 (N, ...), in order of execution."""
    from sweep.formats import _collecting, _onnx_tensors

    exposed, names = _onnx_tensors.exposed(_load_whole(path))
    opened = Session(_inference(path, threads, exposed), threads)
    given = inputs.astype(opened.dtype)
    return _collecting.collected(lambda part: opened.inference.run(names, {opened.input: part}), names, given, opened.fixed_batch)


def predict64(path, inputs):
    """Outputs float64, of the same file with all its arithmetic in double precision. Raises ValueError where that can't be had."""
    from sweep.formats import _onnx_float64

    session = open(path, 1)
    model = _load_whole(path)
    return _onnx_float64.predict(path, model, inputs, session.fixed_batch or EXACT_BATCH, lambda few: predict(session, few))


def export(path, target, folder, details):
    """Write `model.onnx`, with weights of further files in it: the file itself where there are none."""
    import onnx

    if target not in FACTS["exports"]:
        raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))
    written = Path(folder) / FILE
    if not details["beside"]:
        shutil.copyfile(str(path), str(written))
        return FILE
    try:
        onnx.save(_load_whole(path), str(written))
    except ValueError as error:  # protobuf's: over 2 GiB
        raise ValueError("{} with its weights is too large for one file: {}".format(path, error)) from error
    return FILE


def _load(path):
    import onnx

    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's exceptions have no common root with onnx's
        raise _files.damaged(path, error) from error


def _load_whole(path):
    import onnx.external_data_helper as external

    model = _load(path)
    if _beside(path, model):
        external.load_external_data_for_model(model, os.path.dirname(os.path.abspath(str(path))))
    return model


def _inference(path, threads, model=None):
    """A session on the file, or on the bytes of a model that was made of it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(model or str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's exceptions have no common root
        raise _files.damaged(path, error) from error


def _beside(path, model):
    """Names of the files with weights of this model. Raises ValueError for one that is not in its folder, or is a link."""
    folder = os.path.dirname(os.path.abspath(str(path)))
    names = {entry.value for tensor in _tensors(model) for entry in tensor.external_data if entry.key == "location"}
    for name in sorted(names):
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError("{} keeps weights in {!r}; they must be in its own folder".format(path, name))
        _files.check_size(os.path.join(folder, name), links=False)
    return sorted(names)


def _graphs(model):
    """Lists of nodes and the graphs that they are of (None for a function's), subgraphs included."""
    queue = [(model.graph.node, model.graph)] + [(function.node, None) for function in model.functions]
    while queue:
        nodes, graph = queue.pop()
        yield nodes, graph
        for node in nodes:
            for attribute in node.attribute:
                inner = list(attribute.graphs) + ([attribute.g] if attribute.HasField("g") else [])
                queue.extend((graph.node, graph) for graph in inner)


def _nodes(model):
    return (node for nodes, _graph in _graphs(model) for node in nodes)


def _tensors(model):
    for nodes, graph in _graphs(model):
        if graph is not None:
            for tensor in graph.initializer:
                yield tensor
            for sparse in graph.sparse_initializer:
                yield sparse.values
                yield sparse.indices
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                for tensor in attribute.tensors:
                    yield tensor


def _described(arguments):
    return [
        {"name": argument.name, "shape": _signature.dimensions(argument.shape), "dtype": _dtype(argument.type)} for argument in arguments
    ]


def _dtype(text):
    """`tensor(float)` as NumPy calls it; what is no tensor, as it stands."""
    inner = text[len("tensor("):-1] if text.startswith("tensor(") else text
    return {"float": "float32", "double": "float64"}.get(inner, inner)
