"""Post-training quantizations, as rows. A runtime states which of them it has, with which options; the weights are never trained again."""

from typing import NamedTuple


class Quantization(NamedTuple):
    """What becomes of a trained float32 model."""

    weights: str  # their type in the deployed file
    activations: str  # their type where convolutions and matrix products read them
    kind: str  # `none`, `cast`, `dynamic`, `static` or `weight_only`
    calibrated: bool  # whether the ranges of the activations come from a set of images, before deployment
    meaning: str


ROWS = {
    "float32": Quantization("float32", "float32", "none", False, "as exported"),
    "float16": Quantization(
        "float16", "float16 or float32", "cast", False,
        "half precision in the file; a processor without half-precision kernels computes in float32",
    ),
    "bfloat16": Quantization(
        "bfloat16", "bfloat16", "cast", False,
        "the upper half of float32: its range, with 8 bits of precision",
    ),
    "dynamic_int8": Quantization(
        "int8", "int8", "dynamic", False,
        "8-bit weights, and activations whose range is taken anew at every inference",
    ),
    "static_int8": Quantization(
        "int8", "int8", "static", True,
        "8-bit weights and activations, ranges fixed by the calibration images; input and output stay float32",
    ),
    "int16x8": Quantization(
        "int8", "int16", "static", True,
        "8-bit weights and 16-bit activations, ranges fixed by the calibration images; input and output stay float32",
    ),
    "weight_only_int8": Quantization(
        "int8", "float32", "weight_only", False,
        "8-bit weights by output channel, turned back to float32 before they are used",
    ),
    "weight_only_int4": Quantization(
        "int4", "float32", "weight_only", False,
        "4-bit weights by output channel or block, turned back to float32 before they are used",
    ),
    "weight_only_uint8": Quantization(
        "uint8", "float32", "weight_only", False,
        "8-bit weights between the least and the largest of each tensor, turned back to float32 when the file is loaded",
    ),
    "weight_only_uint16": Quantization(
        "uint16", "float32", "weight_only", False,
        "16-bit weights between the least and the largest of each tensor, turned back to float32 when the file is loaded",
    ),
    "weight_only_float16": Quantization(
        "float16", "float32", "weight_only", False,
        "weights in half precision, turned back to float32 when the file is loaded",
    ),
    "linear": Quantization(
        "uint16, uint8 or uint4", "float32", "weight_only", False,
        "weights at 2^bits equal steps between the least and the largest of each tensor, turned back to float32 before they are used",
    ),
}
