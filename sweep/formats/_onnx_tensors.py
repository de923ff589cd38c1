"""Every intermediate tensor of an ONNX file."""

import onnx


def exposed(model):
    """The bytes of a model with each tensor that follows from the input as an output, and the names of these in order of execution."""
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    following = {each.name for each in graph.input if each.name not in constants}
    names = []
    for node in graph.node:
        if following.intersection(node.input):
            names += [name for name in node.output if name]
            following.update(node.output)
    already = {output.name for output in graph.output}
    graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in already)
    return model.SerializeToString(), names
