"""What every `convert` checks before any work."""

import numpy as np


def check(facts, source_format, quantization, calibration):
    """Raise ValueError where a runtime of these facts can't do this conversion, or where its calibration images are missing."""
    if source_format not in facts["accepts"]:
        raise ValueError("takes {}, not {!r}".format(" or ".join(facts["accepts"]), source_format))
    if quantization not in facts["quantizations"]:
        raise ValueError("has no quantization {!r}; there are {}".format(quantization, ", ".join(facts["quantizations"])))
    if quantization not in facts["calibrated"]:
        return
    if calibration is None or len(calibration) == 0:
        raise ValueError("{} needs calibration images".format(quantization))
    if calibration.ndim != 4 or calibration.dtype != np.float32:
        raise ValueError("calibration images are float32 (M, H, W, C), not {} {}".format(calibration.dtype, calibration.shape))
