"""What can be chosen when a graph is served by OpenVINO, and when it is converted, by row."""

SERVING = {
    "precision": {
        "meaning": "what kernels of floating-point operators compute in; auto is what the library takes on this processor",
        "values": ["f32", "bf16", "auto"], "default": "f32",
    },
    "execution_mode": {
        "meaning": "whether what is left to the library may cost accuracy (performance) or not",
        "values": ["performance", "accuracy"], "default": "performance",
    },
    "dynamic_quantization_group_size": {
        "meaning": "how many inputs of a matrix product with compressed weights are rounded to 8 bits with one scale; 0: none is",
        "values": [0, 32, 64, 128], "default": 0,
    },
    "shapes": {
        "meaning": "kernels for any batch size (dynamic), or made anew for each batch size that comes (static)",
        "values": ["dynamic", "static"], "default": "dynamic",
    },
}

_SCHEME = {
    "meaning": "weights symmetric around zero, or with a zero point", "values": ["asymmetric", "symmetric"], "default": "asymmetric",
}

CONVERSION = {
    "float32": {},
    "float16": {},
    "static_int8": {
        "granularity": {
            "meaning": "weights with a scale for each output channel, or one for each tensor; activations have one for each tensor",
            "values": ["channel", "tensor"], "default": "channel",
        },
        "preset": {
            "meaning": "activations symmetric around zero or from zero on (performance), or with any zero point (mixed)",
            "values": ["performance", "mixed"], "default": "performance",
        },
        "calibration": {
            "meaning": "an activation's range: the mean or the extreme of the ends over the calibration batches, or the one that "
            "loses least of the histogram",
            "values": ["mean_minmax", "minmax", "histogram"], "default": "mean_minmax",
        },
        "calibration_batch": {
            "meaning": "how many calibration inputs make one batch, of which the ends of an activation are taken",
            "values": [1, 100], "default": 1,
        },
        "bias_correction": {
            "meaning": "how biases are moved to make up for the mean error: layer by layer on its own inputs, or on the quantized ones",
            "values": ["fast", "full"], "default": "fast",
        },
        "overflow_fix": {
            "meaning": "which weights use half of their range, so that kernels without VNNI do not saturate",
            "values": ["first_layer_only", "enable", "disable"], "default": "first_layer_only",
        },
    },
    "weight_only_int8": {"scheme": _SCHEME},
    "weight_only_int4": {
        "scheme": _SCHEME,
        "group_size": {
            "meaning": "how many weights of an output share a scale; -1: all", "values": [-1, 32, 64, 128], "default": -1,
        },
        "backup": {
            "meaning": "what becomes of weights that can't have 4 bits, as those of convolutions: the model is refused, or 8 bits",
            "values": ["none", "int8"], "default": "none",
        },
    },
}
