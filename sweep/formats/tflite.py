"""TFLite: run by LiteRT's interpreter with the reference kernels, the plain ones that others are held against.

There is no double precision to compare with: kernels compute in the types of the file. Several outputs are in the order of their names
in the signature, since the converter that writes most of these files mixes up the order in which the file has them.
"""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np

from sweep.formats import _arrays, _files, _signature

FACTS = {
    "distribution": "ai-edge-litert",
    "converters": ["tf2onnx", "onnx", "tensorflow"],
    "suffixes": [".tflite"],
    "exports": ["tflite", "onnx"],
    "float64": False,
    "layer_outputs": True,
}

FILES = {"tflite": "model.tflite", "onnx": "model.onnx"}
OPSET = 18
_IDENTIFIER = b"TFL3"  # of the FlatBuffers schema, after an offset of four bytes


class Session:
    """An open model with the batch size that its tensors are allocated for."""

    def __init__(self, interpreter, threads):
        self.interpreter = interpreter
        self.threads = threads
        (given,) = interpreter.get_input_details()
        self.dtype, self.fixed_batch = given["dtype"], _shape(given)[0]
        self._input, self._outputs = given["index"], [found["index"] for found in _outputs(interpreter).values()]
        self._batch = None

    def run(self, inputs):
        """All outputs of one batch, joined. Another batch size than the last one's allocates the tensors anew."""
        if len(inputs) != self._batch:
            self.interpreter.resize_tensor_input(self._input, inputs.shape)
            self.interpreter.allocate_tensors()
            self._batch = len(inputs)
        self.interpreter.set_tensor(self._input, inputs)
        self.interpreter.invoke()
        return _arrays.joined([self.interpreter.get_tensor(index) for index in self._outputs], len(inputs))


def recognise(path):
    return _files.start(path, 8)[4:] == _IDENTIFIER


def inspect(path):
    """What the file says of itself. Raises ValueError, one line: damaged, an operator that the interpreter doesn't have, or another number
    of inputs than one."""
    _files.check_size(path)
    interpreter = _interpreter(path, 1)
    operators = Counter(operator["op_name"] for operator in interpreter._get_ops_details())  # no public reader
    inputs = {each["name"]: each for each in interpreter.get_input_details()}
    return _signature.details(path, _described(inputs), _described(_outputs(interpreter)), operators)


def open(path, threads):
    """A session with `threads` threads for each operator. Raises ValueError that names a damaged file."""
    return Session(_interpreter(path, threads), threads)


def predict(session, inputs, batch_size=256):
    """Outputs (N, ...) of inputs (N, ...) of the model's own type; several outputs are flattened and joined in the signature's order."""
    return _arrays.predict(session.run, inputs, session.fixed_batch or batch_size, session.dtype)


def describe(session):
    """The kernels, and threads as asked for: the interpreter has no reader for them."""
    return {"op_resolver": "BUILTIN_REF", "threads": session.threads}


def layer_outputs(path, threads, inputs):
    """Every tensor of floating point, or of integers with a scale, that follows from the inputs, by name, as float32 (N, ...), in order of
    execution."""
    from sweep.formats import _tflite_tensors

    session = Session(_interpreter(path, threads, keep=True), threads)
    return _tflite_tensors.collected(session.interpreter, session.run, inputs.astype(session.dtype))


def export(path, target, folder, details):
    """Write `model.tflite`, a copy, or `model.onnx`. Raises ValueError that names the file where the converter can't read it."""
    if target not in FACTS["exports"]:
        raise ValueError("no export to {!r}; there are {}".format(target, ", ".join(FACTS["exports"])))
    written = Path(folder) / FILES[target]
    if target == "tflite":
        shutil.copyfile(str(path), str(written))
    else:
        from tf2onnx import convert

        names = [each["name"] for each in _outputs(_interpreter(path, 1)).values()]
        try:
            convert.from_tflite(str(path), output_names=names, opset=OPSET, output_path=str(written))
        except Exception as error:  # the converter's exceptions have no common root
            raise _files.damaged(path, error) from error
    return FILES[target]


def _interpreter(path, threads, keep=False):
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    options = {"experimental_op_resolver_type": OpResolverType.BUILTIN_REF, "experimental_preserve_all_tensors": keep}
    try:
        interpreter = Interpreter(str(path), num_threads=threads, **options)
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise _files.damaged(path, error) from error
    return interpreter


def _outputs(interpreter):
    """Details of the outputs by name: in the order of the names where there is a signature, else in the file's."""
    signatures = list(interpreter.get_signature_list())
    if len(signatures) == 1:
        return dict(sorted(interpreter.get_signature_runner(signatures[0]).get_output_details().items()))
    return {each["name"]: each for each in interpreter.get_output_details()}


def _described(found):
    return [{"name": name, "shape": _shape(each), "dtype": np.dtype(each["dtype"]).name} for name, each in found.items()]


def _shape(found):
    """With None for what the file leaves open; a file that says nothing of that may have its batch changed nevertheless."""
    sizes = found["shape_signature"] if len(found["shape_signature"]) else found["shape"]
    return _signature.dimensions([int(size) for size in sizes])
