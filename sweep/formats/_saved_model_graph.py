"""Reading a SavedModel's message: its graph, its signature, and which operators loading or calling it would run."""

import re
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from sweep.formats import _files, _signature
from sweep.formats._tensorflow_graph import Graph, flat

FILE, TAG, SIGNATURE = "saved_model.pb", "serve", "serving_default"
_OTHER_FILES = ("saved_model.pbtxt", "saved_model.cpb")  # the same message in other forms, of which the loader might take one

_REACHES_OUT = re.compile(
    "File|PyFunc|Reader|Writer|Record|Dataset|Iterator|Sql|LMDB|Print|Debug|Rpc|Remote|Summary|Save|Restore|Snapshot|Checkpoint|Custom|"
    "ImmutableConst|LoadAndRemap|GenerateVocab|TPU|Send|Recv|Collective|Nccl|Session|Distribute"
)
"""Operators that read or write files, call Python, talk to other processes or the network, or run what the graph does not show."""
_RESTORE = ("RestoreV2", "RestoreSlice", "Restore")  # how a model's own variables are read


def read(path):
    """The model as a flat `Graph`, and its inputs and outputs (by their names' order) as the signature describes them.

    Raises ValueError that names the folder: damaged, without a signature to serve, or with an operator that reaches out.
    """
    meta = _meta_graph(path)
    signature = _signature_of(path, meta)
    _check_operators(path, meta, signature)
    described = _described(signature.inputs), _described(signature.outputs)
    _signature.details(path, *described, operators={})  # raises for another number of inputs than one
    v1, outputs = tf.compat.v1, [signature.outputs[name].name for name in sorted(signature.outputs)]
    try:
        with v1.Session(graph=tf.Graph()) as session:
            v1.saved_model.load(session, [TAG], str(path))
            kept = sorted({name.split(":")[0] for name in outputs})
            constants = v1.graph_util.convert_variables_to_constants(session, session.graph.as_graph_def(), kept)
        (given,) = signature.inputs.values()
        return flat(Graph(constants, given.name, outputs)), described
    except Exception as error:  # TensorFlow's exceptions have no common root
        raise _files.damaged(path, error) from error


def _meta_graph(path):
    others = [name for name in _OTHER_FILES if (Path(path) / name).exists()]
    if others:
        raise ValueError("{} holds {}; a model's graph is read from {} alone".format(path, ", ".join(others), FILE))
    message = saved_model_pb2.SavedModel()
    try:
        message.ParseFromString((Path(path) / FILE).read_bytes())
    except Exception as error:  # protobuf's
        raise _files.damaged(Path(path) / FILE, error) from error
    tagged = [meta for meta in message.meta_graphs if list(meta.meta_info_def.tags) == [TAG]]
    if len(tagged) != 1:
        raise ValueError("{} has {} graphs that are tagged {!r}, not one".format(path, len(tagged), TAG))
    return tagged[0]


def _signature_of(path, meta):
    """`serving_default`, or the only one that there is."""
    named = {name: each for name, each in meta.signature_def.items() if not name.startswith("__")}
    if SIGNATURE in named:
        return named[SIGNATURE]
    if len(named) != 1:
        raise ValueError("{} has the signatures {}, and no {}".format(path, ", ".join(sorted(named)) or "none", SIGNATURE))
    return next(iter(named.values()))


def _described(tensors):
    return [
        {"name": name, "shape": _shape(each.tensor_shape), "dtype": tf.as_dtype(each.dtype).name} for name, each in sorted(tensors.items())
    ]


def _shape(shape):
    return None if shape.unknown_rank else _signature.dimensions([int(axis.size) for axis in shape.dim])


def _check_operators(path, meta, signature):
    """Raise ValueError that names every operator that reaches out and that loading or calling the model would run."""
    called = [each.name for each in signature.outputs.values()]
    found = _operators(meta.graph_def, called + _run_after_loading(meta))
    found |= _operators(meta.graph_def, [meta.saver_def.restore_op_name]) - set(_RESTORE)
    reaching = sorted(name for name in found if _REACHES_OUT.search(name))
    if reaching:
        raise ValueError("{} has operators that reach beyond the model: {}".format(path, ", ".join(reaching)))


def _run_after_loading(meta):
    """Names of what the loader runs once the variables are read."""
    hidden = [each for name, each in meta.signature_def.items() if name.startswith("__")]
    names = [output.name for each in hidden for output in each.outputs.values()]
    for collection in ("saved_model_main_op", "legacy_init_op"):
        if collection in meta.collection_def:
            names.extend(meta.collection_def[collection].node_list.value)
    return names


def _operators(graph, wanted):
    """Operators of the nodes that give the wanted tensors, and of all the functions that these call."""
    nodes = {node.name: node for node in graph.node}
    functions = {function.signature.name: function.node_def for function in graph.library.function}
    queue, seen, found, called = [_node_name(name) for name in wanted], set(), set(), []
    while queue:
        name = queue.pop()
        if name in nodes and name not in seen:
            seen.add(name)
            queue.extend(_node_name(read) for read in nodes[name].input)
            called.append(nodes[name])
    entered = set()
    while called:
        node = called.pop()
        found.add(node.op)
        for function in _called_by(node):
            if function in functions and function not in entered:
                entered.add(function)
                called.extend(functions[function])
    return found


def _called_by(node):
    """Names of functions that a node may call: its operator, and those among its attributes."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        elif value.HasField("list"):
            for function in value.list.func:
                yield function.name


def _node_name(tensor):
    """`^name` is a control input, `name:1` a second output."""
    return tensor.lstrip("^").split(":")[0]
