"""What every `convert` checks before any work."""

import numpy as np


def check(facts, source_format, quantization, calibration, settings):
    """Raise ValueError where a runtime of these facts can't do this conversion, or its calibration inputs or an option are missing."""
    if source_format not in facts["accepts"]:
        raise ValueError("takes {}, not {!r}".format(" or ".join(facts["accepts"]), source_format))
    if quantization not in facts["quantizations"]:
        raise ValueError("has no quantization {!r}; there are {}".format(quantization, ", ".join(facts["quantizations"])))
    for option in facts["quantizations"][quantization]:
        if option not in settings:
            raise ValueError("{} needs the option {}".format(quantization, option))
    if quantization not in facts["calibrated"]:
        return
    if calibration is None or len(calibration) == 0:
        raise ValueError("{} needs calibration inputs".format(quantization))
    if calibration.dtype not in (np.float32, np.int32):
        raise ValueError("calibration inputs are float32 or int32, not {}".format(calibration.dtype))


def check_outputs(path, found, details):
    """Raise ValueError that names the file where its outputs' shapes, without the batch axis, are not the one that details state."""
    expected = details["output_shape"]
    if expected is not None and [list(shape) for shape in found] != [list(expected)]:
        given = " and ".join(str(tuple(shape)) for shape in found)
        raise ValueError("{} gives outputs of shape {}, not {}".format(path, given or "nothing", tuple(expected)))
