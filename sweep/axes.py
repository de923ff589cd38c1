"""The axes of the grid, and the values that are words of the program rather than components."""

import re

AXES = (
    "framework", "dataset", "architecture", "recipe", "seed", "weights", "control", "runtime", "quantization", "device", "corruption",
    "attack", "model", "operator",
)
VARIED = ("runtime", "quantization", "corruption", "attack")
"""Axes whose values may have settings of their own (`sweep.variants`)."""

RECIPES = ("defaults", "matched", "identical")
WEIGHTS = ("trained", "same")
NO_CONTROL, ONE_ULP, FLOAT64 = "none", "one_ulp", "float64"
CONTROLS = (NO_CONTROL, ONE_ULP, FLOAT64)
NO_CORRUPTION = "none"
NO_ATTACK = "none"
FLOAT32 = "float32"
"""The quantization that is none."""

NATIVE = "native"
"""The format that is a framework's own, which every framework writes and which needs no conversion; and the runtime that opens it."""

NOTHING = "none"
"""The value of an axis that a cell does not have: a user's own model has no framework, a network no operator."""

ALL = "all"
STAGES_EXPERIMENT = "stages"
CUSTOM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
OWN_INPUTS = re.compile(r".+\.npz")
