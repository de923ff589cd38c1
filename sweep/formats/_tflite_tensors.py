"""What a .tflite model computes on the way, from an interpreter that keeps its tensors."""

import numpy as np

DELEGATE = "DELEGATE"
"""What the interpreter calls operators that it has handed to one."""


def collected(interpreter, invoke, inputs):
    """Float32 (N, ...) of every tensor of floating point, or of integers with a scale, that follows from the inputs, by name and in order
    of execution; `invoke` has the interpreter compute them for one input (1, ...).

    The inputs are run one by one. A tensor whose first axis isn't the batch gets one in front. What happens within a loop isn't here.
    """
    found = {}
    for number in range(len(inputs)):
        invoke(inputs[number:number + 1])
        for name, tensor in _following(interpreter).items():
            value = _real(interpreter.get_tensor(tensor["index"]), tensor["quantization_parameters"])
            found.setdefault(name, []).append(value if value.shape[:1] == (1,) else value[np.newaxis])
    return {name: np.concatenate(values) for name, values in found.items()}


def _following(interpreter):
    """The tensors of real numbers that depend on the input, by name; the number is added to a name that there is already."""
    tensors = {tensor["index"]: tensor for tensor in interpreter.get_tensor_details()}
    reached, found = {interpreter.get_input_details()[0]["index"]}, {}
    for operator in interpreter._get_ops_details():  # no public reader
        if operator["op_name"] == DELEGATE or not reached & set(operator["inputs"].tolist()):
            continue
        for index in (index for index in operator["outputs"].tolist() if index in tensors):
            reached.add(index)
            tensor = tensors[index]
            if tensor["dtype"] in (np.float32, np.float16) or len(tensor["quantization_parameters"]["scales"]):
                found[tensor["name"] if tensor["name"] not in found else "{}#{}".format(tensor["name"], index)] = tensor
    return found


def _real(values, quantization):
    """Activations have one scale and one zero point."""
    if not len(quantization["scales"]):
        return values.astype(np.float32)
    return (values.astype(np.float32) - np.float32(quantization["zero_points"][0])) * quantization["scales"][0]
