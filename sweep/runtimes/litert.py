"""LiteRT: a SavedModel becomes a .tflite file, which needs TensorFlow; opening one does not.

`dynamic_int8` is the converter's dynamic range quantization: it leaves weights of fewer than 1,024 elements in float32. Its kernels
take the range of an activation image by image, so no row depends on the batch.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from sweep.runtimes import _batches, _requests

FACTS = {
    "distribution": "ai-edge-litert",
    "converters": ["tensorflow", "ai-edge-quantizer"],
    "options": {},
    "accepts": {"saved_model": "tflite"},
    "format": "tflite",
    "quantizations": ["float32", "float16", "dynamic_int8", "static_int8", "weight_only_int8"],
    "calibrated": ["static_int8"],
    "batch_dependent": [],
    "float64": False,
    "processors": ["cpu"],
}

FILE = "model.tflite"

# Built-in kernels, with the XNNPACK delegate for what it can take: the 8-bit kernels of the two differ, so this is part of a result.
_RESOLVER = OpResolverType.AUTO


class Session:
    """An open model with the batch size that its tensors are allocated for."""

    def __init__(self, interpreter, classes, threads):
        self.interpreter = interpreter
        self.classes = classes
        self.threads = threads
        self._input = interpreter.get_input_details()[0]["index"]
        self._output = interpreter.get_output_details()[0]["index"]
        self._batch = None

    def run(self, images):
        """Logits (B, classes) of one batch. Another batch size than the last one's allocates the tensors anew."""
        if len(images) != self._batch:
            self.interpreter.resize_tensor_input(self._input, images.shape)
            self.interpreter.allocate_tensors()
            self._batch = len(images)
        self.interpreter.set_tensor(self._input, images)
        self.interpreter.invoke()
        return self.interpreter.get_tensor(self._output)


def convert(source, source_format, folder, quantization, calibration):
    """Write `model.tflite` with float32 input and output and a free batch size. For `static_int8` every operator is 8-bit.

    Raises ValueError that names the source: damaged, an operator that this runtime does not have, or no weight large enough for the
    converter to quantize.
    """
    _requests.check(FACTS, source_format, quantization, calibration)
    with contextlib.redirect_stdout(sys.stderr):  # the tools report there
        try:
            content = _CONTENT[quantization](source, calibration)
        except Exception as error:  # the converter's exceptions have no common root
            raise ValueError("{}: {}".format(source, " ".join(str(error).split()))) from error
    target = Path(folder) / FILE
    target.write_bytes(content)
    if quantization.endswith("int8") and not _has_int8_weights(target):
        raise ValueError("{}: {} quantized no weight".format(source, quantization))
    return FILE


def open(path, threads, details):
    """A session with `threads` threads for each operator.

    Raises ValueError that names the file where it is damaged, or does not have one input and one output of details["classes"] logits.
    """
    interpreter = _interpreter(path, threads, _RESOLVER)
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError("{} has {} inputs and {} outputs, not one each".format(path, len(inputs), len(outputs)))
    if outputs[0]["shape"][-1] != details["classes"]:
        raise ValueError("{} gives {} logits, not {}".format(path, outputs[0]["shape"][-1], details["classes"]))
    return Session(interpreter, details["classes"], threads)


def predict(session, images, batch_size=256):
    """Logits float32 (N, classes)."""
    return _batches.predict(session.run, images, batch_size, session.classes)


def describe(session):
    """Resolver, threads, operators of the file, and into how many pieces a delegate took the graph (0: none did), read back."""
    operators = [operator["op_name"] for operator in session.interpreter._get_ops_details()]  # no public reader
    delegates = operators.count("DELEGATE")
    return {
        "op_resolver": _RESOLVER.name,
        "delegate": "XNNPACK" if delegates else None,
        "delegated_partitions": delegates,
        "operators": [operator for operator in operators if operator != "DELEGATE"],
        "threads": session.threads,  # as asked: the interpreter has no reader for it
    }


def _interpreter(path, threads, resolver):
    try:
        interpreter = Interpreter(str(path), num_threads=threads, experimental_op_resolver_type=resolver)
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise ValueError("{}: {}".format(path, " ".join(str(error).split()))) from error
    return interpreter


def _converter(source):
    import tensorflow

    return tensorflow.lite.TFLiteConverter.from_saved_model(str(source))


def _float32(source, _calibration):
    return _converter(source).convert()


def _float16(source, _calibration):
    import tensorflow

    converter = _converter(source)
    converter.optimizations = [tensorflow.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tensorflow.float16]
    return converter.convert()


def _dynamic(source, _calibration):
    import tensorflow

    converter = _converter(source)
    converter.optimizations = [tensorflow.lite.Optimize.DEFAULT]
    return converter.convert()


def _static(source, calibration):
    import tensorflow

    converter = _converter(source)
    converter.optimizations = [tensorflow.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[np.newaxis]] for image in calibration)
    converter.target_spec.supported_ops = [tensorflow.lite.OpsSet.TFLITE_BUILTINS_INT8]
    return converter.convert()


def _weight_only(source, _calibration):
    """The converter has dynamic and static rows; its sister tool leaves the activations in float32."""
    from ai_edge_quantizer import quantizer, recipe

    rewriter = quantizer.Quantizer(bytearray(_float32(source, None)), recipe.weight_only_wi8_afp32())
    return rewriter.quantize().quantized_model


def _has_int8_weights(path):
    """Whether a tensor of more than one axis is int8; without a delegate, which would hide none but costs its set-up."""
    interpreter = _interpreter(path, 1, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    return any(tensor["dtype"] is np.int8 and len(tensor["shape"]) > 1 for tensor in interpreter.get_tensor_details())


_CONTENT = {
    "float32": _float32,
    "float16": _float16,
    "dynamic_int8": _dynamic,
    "static_int8": _static,
    "weight_only_int8": _weight_only,
}
