"""What every `convert` checks before any work."""

import numpy as np


def check(facts, source_format, quantization, calibration):
    """Raise ValueError where a runtime of these facts can't do this conversion, or where its calibration inputs are missing."""
    if source_format not in facts["accepts"]:
        raise ValueError("takes {}, not {!r}".format(" or ".join(facts["accepts"]), source_format))
    if quantization not in facts["quantizations"]:
        raise ValueError("has no quantization {!r}; there are {}".format(quantization, ", ".join(facts["quantizations"])))
    if quantization not in facts["calibrated"]:
        return
    if calibration is None or len(calibration) == 0:
        raise ValueError("{} needs calibration inputs".format(quantization))
    if (calibration.ndim, calibration.dtype) not in ((4, np.float32), (2, np.int32)):
        text = "calibration inputs are images float32 (M, H, W, C) or token ids int32 (M, T), not {} {}"
        raise ValueError(text.format(calibration.dtype, calibration.shape))
