"""TensorFlow graphs that stand for a user's model: flat, without variables or functions, from one input to its outputs.

They are run by sessions of TensorFlow 1. A function of TensorFlow 2 belongs to the whole process, and those of two files may have the
same name.
"""

from collections import namedtuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tensorflow.python.grappler import tf_optimizer

OPSET = 18
_FLOATS = (types_pb2.DT_FLOAT, types_pb2.DT_HALF, types_pb2.DT_BFLOAT16)
_NORMS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")  # without a kernel for double precision


Graph = namedtuple("Graph", "definition input outputs")
"""A frozen graph, and the names of its tensors, such as `input:0`: of its one input, and a list of its outputs'."""


def frozen(function):
    """The graph of a concrete function of one tensor, its variables made constants and all that it calls put in line."""
    flat = convert_variables_to_constants_v2(function)
    (given,) = flat.inputs
    return Graph(flat.graph.as_graph_def(), given.name, [output.name for output in flat.outputs])


def flat(graph):
    """A graph of constants with all that it calls put in line."""
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph.definition, name="")
        exported = tf.compat.v1.train.export_meta_graph(graph_def=graph.definition, graph=imported)
    exported.collection_def["train_op"].node_list.value.extend([graph.input] + graph.outputs)  # what must stay
    config = config_pb2.ConfigProto()
    rewriting = config.graph_options.rewrite_options
    rewriting.min_graph_nodes = -1  # small graphs too
    rewriting.optimizers.append("function")
    rewriting.function_optimization = rewriter_config_pb2.RewriterConfig.AGGRESSIVE
    return graph._replace(definition=tf_optimizer.OptimizeGraph(config, exported))


def following(graph):
    """The names of a graph's tensors of floating point that follow from its input, in the order of its nodes, which is one of execution."""
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph.definition, name="")
    reached, found = {graph.input}, []
    for operator in imported.get_operations():
        if reached.intersection(tensor.name for tensor in operator.inputs):
            reached.update(tensor.name for tensor in operator.outputs)
            found += [tensor.name for tensor in operator.outputs if tensor.dtype.is_floating]
    return found


class Session:
    """A graph that is ready to run."""

    def __init__(self, graph, threads):
        config = config_pb2.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1)
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.Graph().as_default() as imported:
            tf.import_graph_def(graph.definition, name="")
        given = imported.as_graph_element(graph.input)
        self.dtype, self.shape = given.dtype.as_numpy_dtype, None if given.shape.rank is None else given.shape.as_list()
        self._run = tf.compat.v1.Session(graph=imported, config=config).make_callable(graph.outputs, feed_list=[given])

    def run(self, inputs):
        """All outputs of one batch, as a list."""
        return self._run(inputs)


def write_saved_model(graph, folder):
    """Write a graph as a SavedModel with one signature and nothing else, its outputs named in order."""
    imported = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph.definition, name=""), [])
    at = imported.graph.as_graph_element
    function = imported.prune(at(graph.input), [at(name) for name in graph.outputs])
    specification = tf.TensorSpec(function.inputs[0].shape, function.inputs[0].dtype, name="input")

    @tf.function(input_signature=[specification])
    def serve(inputs):
        return {"output_{:02d}".format(number): output for number, output in enumerate(function(inputs))}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})


def write_onnx(graph, path):
    """Write a graph as ONNX."""
    from tf2onnx import convert

    convert.from_graph_def(
        graph.definition, input_names=[graph.input], output_names=list(graph.outputs), opset=OPSET, output_path=str(path)
    )


def predict64(graph, inputs):
    """Outputs float64 of a graph with all its arithmetic in double precision, a list per input. Whatever TensorFlow raises where an
    operator has no such kernel."""
    session = Session(graph._replace(definition=_in_double(graph.definition)), 1)
    inputs = inputs.astype(np.float64) if inputs.dtype == np.float32 else inputs
    return [session.run(inputs[i:i + 1]) for i in range(len(inputs))]


def _in_double(definition):
    """A copy of a flat graph in which every floating-point type and constant is float64."""
    doubled = tf.compat.v1.GraphDef()
    doubled.versions.CopyFrom(definition.versions)
    for node in definition.node:
        if node.op in _NORMS:
            doubled.node.extend(_norm(node))
            continue
        copy = doubled.node.add()
        copy.CopyFrom(node)
        for value in copy.attr.values():
            if value.type in _FLOATS:
                value.type = types_pb2.DT_DOUBLE
            elif value.HasField("list"):
                value.list.type[:] = [types_pb2.DT_DOUBLE if each in _FLOATS else each for each in value.list.type]
            elif value.HasField("tensor") and value.tensor.dtype in _FLOATS:
                value.tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(value.tensor).astype(np.float64)))
    return doubled


def _norm(node):
    """A batch norm in inference mode, channels last, as a scale and an offset. Raises ValueError for any other."""
    if node.attr["is_training"].b or node.attr["data_format"].s not in (b"", b"NHWC"):
        raise ValueError("{} is a batch norm in training mode, or channels first".format(node.name))
    x, scale, offset, mean, variance = node.input[:5]
    graph = tf.Graph()
    with graph.as_default():
        read = {name: tf.compat.v1.placeholder(tf.float64, name=name) for name in ("x", "scale", "offset", "mean", "variance")}
        factor = read["scale"] / tf.sqrt(read["variance"] + np.float64(node.attr["epsilon"].f))
        tf.add((read["x"] - read["mean"]) * factor, read["offset"], name="y")
    return _inlined(graph.as_graph_def(), node.name, {"x": x, "scale": scale, "offset": offset, "mean": mean, "variance": variance})


def _inlined(definition, name, given):
    """The nodes of a small graph under a node's name, placeholders replaced by what it reads; its node `y` takes the name itself."""
    for node in definition.node:
        if node.name in given:
            continue
        node.input[:] = [given.get(read, "{}/{}".format(name, read)) for read in node.input]
        node.name = name if node.name == "y" else "{}/{}".format(name, node.name)
        yield node
