"""A .tflite file in an interpreter, run batch by batch."""

from collections import Counter

import numpy as np

from sweep.formats._tflite_tensors import DELEGATE
from sweep.runtimes import _batches, _requests


class Session:
    """An open model. `batch` is how many inputs it takes at once, None for any number; `inputs` and `outputs` are the interpreter's."""

    def __init__(self, interpreter, threads, resolver):
        self.interpreter = interpreter
        self.threads = threads
        self.resolver = resolver
        self.inputs, self.outputs = interpreter.get_input_details(), _outputs(interpreter)
        self.dtype, self.shape = np.dtype(self.inputs[0]["dtype"]).name, _shape(self.inputs[0])
        self.batch = self.shape[0]
        self._allocated = tuple(self.shape)  # the shape of inputs that the tensors are for

    def run(self, inputs):
        """Outputs float32 (B, ...) of one batch."""
        self.invoke(inputs)
        return _batches.joined([self.interpreter.get_tensor(output["index"]) for output in self.outputs])

    def invoke(self, inputs):
        """Run the model; what it computed is in the interpreter's tensors. Raises ValueError for a shape that it does not take."""
        index = self.inputs[0]["index"]
        if inputs.shape != self._allocated:
            try:
                self.interpreter.resize_tensor_input(index, inputs.shape, strict=True)
            except RuntimeError as error:
                raise ValueError(" ".join(str(error).split())) from error
            self.interpreter.allocate_tensors()
            self._allocated = inputs.shape
        self.interpreter.set_tensor(index, inputs)
        self.interpreter.invoke()


def opened(path, interpreter, threads, resolver, details):
    """A session. Raises ValueError that names the file where it is not of details["input_dtype"], ["input_shape"] and ["output_shape"],
    has another number of inputs than one, gives something else than float32, or takes another number of inputs at once than one or any."""
    inputs = interpreter.get_input_details()
    if len(inputs) != 1 or not _shape(inputs[0]):
        raise ValueError("{} takes {} arrays, not one with a batch axis".format(path, len(inputs)))
    session = Session(interpreter, threads, resolver)
    for output in session.outputs:
        if output["dtype"] is not np.float32:
            raise ValueError("{} gives {} as {}, not float32".format(path, output["name"], np.dtype(output["dtype"]).name))
    if session.dtype != details["input_dtype"]:
        raise ValueError("{} takes {}, not {}".format(path, session.dtype, details["input_dtype"]))
    found, expected = session.shape[1:], details["input_shape"]
    if len(found) != len(expected) or any(size not in (None, wanted) for size, wanted in zip(found, expected)):
        raise ValueError("{} takes inputs of shape {}, not {}".format(path, tuple(found), tuple(expected)))
    if session.batch not in (None, 1):
        raise ValueError("{} takes {} inputs at once".format(path, session.batch))
    _requests.check_outputs(path, [output["shape"][1:].tolist() for output in session.outputs], details)
    return session


def try_out(interpreter):
    """Run a model once on zeros, where its file says the shape of every input but for a batch. Raises ValueError where it can't."""
    shapes = {given["index"]: (_shape(given), given["dtype"]) for given in interpreter.get_input_details()}
    if any(None in shape[1:] for shape, _dtype in shapes.values()):
        return
    try:
        for index, (shape, dtype) in shapes.items():
            interpreter.set_tensor(index, np.zeros([1] + shape[1:] if shape else shape, dtype))
        interpreter.invoke()
    except (ValueError, RuntimeError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def describe(session):
    """Resolver, threads, how often the file has each operator, and into how many pieces a delegate took the graph (0: none did)."""
    operators = Counter(operator["op_name"] for operator in session.interpreter._get_ops_details())  # no public reader
    delegated = operators.pop(DELEGATE, 0)
    return {
        "resolver": session.resolver,
        "delegate": "XNNPACK" if delegated else None,
        "delegated_partitions": delegated,
        "operators": dict(sorted(operators.items())),
        "batch": session.batch or "any",
        "threads": session.threads,  # as asked: the interpreter has no reader for it
    }


def _outputs(interpreter):
    """Details of the outputs: in the order of their names where there is one signature. The converter that writes most of these files mixes
    up the order in which the file has them."""
    signatures = list(interpreter.get_signature_list())
    if len(signatures) != 1:
        return interpreter.get_output_details()
    named = interpreter.get_signature_runner(signatures[0]).get_output_details()
    return [named[name] for name in sorted(named)]


def _shape(given):
    """With None for what the file leaves open; old files don't say what that is."""
    sizes = given["shape_signature"] if len(given["shape_signature"]) else given["shape"]
    return [None if size == -1 else int(size) for size in sizes]
