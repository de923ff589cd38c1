"""Making the content of a .tflite file from what a framework exported."""

import contextlib
import sys
from pathlib import Path

_BY_CHANNEL = {
    "granularity": {"meaning": "what has a scale of its own in the weights", "values": ["channel", "tensor"], "default": "channel"},
}
FACTS = {
    "converters": ["tensorflow", "ai-edge-litert", "ai-edge-quantizer"],
    "accepts": {"saved_model": "tflite", "xla_saved_model": "tflite", "tflite": "tflite"},
    "format": "tflite",
    "quantizations": {
        "float32": {},
        "float16": {},
        "dynamic_int8": _BY_CHANNEL,
        "static_int8": _BY_CHANNEL,
        "int16x8": _BY_CHANNEL,
        "weight_only_int8": _BY_CHANNEL,
        "weight_only_int4": _BY_CHANNEL,
    },
    "calibrated": ["static_int8", "int16x8"],
}

FILE = "model.tflite"


def write(source, source_format, folder, row, calibration, settings):
    """Write `model.tflite` and return its path: by TensorFlow's converter from a SavedModel, whose graph may be in StableHLO. It has some
    of the rows; the others, and all of a file that is one already, are made by LiteRT's quantizer. Inputs and outputs stay as they are.

    Raises ValueError that names the source: damaged, an operator that there is no kernel for, a loop to be calibrated, or nothing to
    quantize.
    """
    granularity = settings.get("granularity")
    calibration = calibration if row in FACTS["calibrated"] else None
    with contextlib.redirect_stdout(sys.stderr):  # the tools report there
        try:
            content = _content(source, source_format, row, calibration, granularity)
        except ValueError:
            raise
        except Exception as error:  # the tools' exceptions have no common root
            raise ValueError("{}: {}".format(source, " ".join(str(error).split()))) from error
    target = Path(folder) / FILE
    target.write_bytes(content)
    return target


def _content(source, source_format, row, calibration, granularity):
    if source_format == "tflite":
        content, done = Path(source).read_bytes(), "float32"
    else:
        from sweep.runtimes import _litert_tensorflow

        done = row if row in _litert_tensorflow.ROWS else "float32"
        content = _litert_tensorflow.converted(source, done, calibration, granularity)
    if done != row:
        from sweep.runtimes import _litert_quantizer

        content = _litert_quantizer.quantized(source, content, row, calibration, granularity)
    if row != "float32":
        from sweep.runtimes import _litert_file

        _litert_file.check(source, _litert_file.model(content), row, granularity)
    return content
