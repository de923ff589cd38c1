"""Where two trainings from equal weights on equal batches part: the step, the layer, and whether it is a formula or rounding."""

import json
import os

import numpy as np

SAME_FLOAT64 = 1e-8
"""Relative difference of losses that rounding in double precision does not reach within some hundred steps."""
CONTROL_FACTOR = 5.0
"""In single precision a difference counts beyond this many times what moving each weight by one ulp does."""
_EPSILON = float(np.finfo(np.float32).eps)
_FLOOR = 8 * _EPSILON  # of the loss: below it single precision shows nothing, whatever the control did


def run(settings, traces, out):
    """Compare two traces (`sweep.stages.trace`). `traces` are folders by role, for the sides `own` and `against`: SIDE_none,
    SIDE_one_ulp_DRAW, and SIDE_float64 where the framework has it. Writes `comparison.json`; returns metrics and the fact `training`."""
    read = {role: _read(folder) for role, folder in traces.items()}
    found = float32_verdict(read["own_none"], read["against_none"], _moved(read, "own"))
    found["loss_diff_one_ulp_against_max"] = float(_moved(read, "against").max())
    if "own_float64" in read:
        found.update(rounding(read["own_none"], read["own_float64"], found))
        if "against_float64" in read:
            found.update(float64_verdict(read["own_float64"], read["against_float64"]))
    verdict = _sentence(found, settings["against"])
    with open(os.path.join(out, "comparison.json"), "w") as file:
        json.dump(dict(found, verdict=verdict), file, indent=1)
    metrics = {"trace_" + name: value for name, value in found.items() if type(value) in (int, float)}
    return {"metrics": metrics, "facts": {"training": verdict}}


def _moved(read, side):
    """How far the losses of a side's controls are from its own, (draws, steps)."""
    controls = [read[role]["losses"] for role in sorted(read) if role.startswith(side + "_one_ulp")]
    return np.abs(np.array(controls) - read[side + "_none"]["losses"])


def float32_verdict(own, against, moved):
    """Losses against those of another framework, beside what moving each weight by one ulp does here: `moved` is (draws, steps).

    `loss_diff_max`, `loss_diff_one_ulp_max`; `ratio_to_control`, the largest of any step to the controls' largest up to that step; and
    where it exceeds CONTROL_FACTOR, `parts_at_step` and `parts_in`.
    """
    difference, control = np.abs(own["losses"] - against["losses"]), moved.max(axis=0)
    reach = np.maximum(np.maximum.accumulate(control), _FLOOR * np.abs(own["losses"]))
    ratio = difference / reach
    found = {"loss_diff_max": float(difference.max()), "loss_diff_one_ulp_max": float(control.max())}
    found["ratio_to_control"] = float(ratio.max())
    beyond = np.flatnonzero(~(ratio <= CONTROL_FACTOR))
    if len(beyond):
        found["parts_at_step"] = int(beyond[0]) + 1
        found["parts_in"] = _layer_at(own, against, found["parts_at_step"], 1e3 * _EPSILON)
    return found


def rounding(own, twin, found):
    """How far a framework parts from its own twin in double precision, whose formulas are the same: `loss_diff_rounding_max`; and where it
    parts from the other framework (`found`), whether this is as far, `parts_as_from_own_float64`.

    Rounding in every operation may turn the largest of a pooling window into the second largest where one ulp in the starting weights
    happens not to; but a fault of single-precision kernels alone would show alike.
    """
    difference = np.abs(own["losses"] - twin["losses"])
    result = {"loss_diff_rounding_max": float(difference.max())}
    if "parts_at_step" in found:
        result["parts_as_from_own_float64"] = bool(difference.max() * CONTROL_FACTOR >= found["loss_diff_max"])
    return result


def float64_verdict(own, against):
    """The same between twins in double precision, where only another formula makes a difference.

    `loss_diff_rel_float64`, and where it exceeds SAME_FLOAT64 `formula_parts_at_step` and `formula_parts_in`.
    """
    relative = np.abs(own["losses"] - against["losses"]) / np.abs(against["losses"])
    found = {"loss_diff_rel_float64": float(relative.max())}
    beyond = np.flatnonzero(~(relative <= SAME_FLOAT64))
    if len(beyond):
        found["formula_parts_at_step"] = int(beyond[0]) + 1
        found["formula_parts_in"] = _layer_at(own, against, found["formula_parts_at_step"], SAME_FLOAT64)
    return found


def _layer_at(own, against, step, tolerance):
    """Where it starts, in words: the forward pass, a layer's gradient, a parameter's update, or a parameter after some step.

    A wrong backward pass spoils the gradients of its own layer and of all before it, so the last layer with a wrong gradient is it.
    """
    if step == 1:
        return "the forward pass"
    gradients = _differing(own, against, "gradient/", tolerance)
    if gradients:
        return "the gradient of {}".format(gradients[-1][0])
    for kept in own["steps"]:
        updated = _differing(own, against, "weights/{}/".format(kept), tolerance)
        if updated:
            name = max(updated, key=lambda entry: entry[1])[0]
            return "{} after step {}".format(name, kept)
    return "no weight that was kept"


def _differing(own, against, prefix, tolerance):
    """(parameter, relative difference) of those that differ, in the order of the network; relative to the parameter's largest entry."""
    found = []
    for key in own:
        if key.startswith(prefix):
            scale = max(float(np.abs(against[key]).max()), 1e-30)
            relative = float(np.abs(own[key] - against[key]).max()) / scale
            if not relative <= tolerance:
                found.append((key[len(prefix):], relative))
    return found


def _sentence(found, against):
    if "formula_parts_at_step" in found:
        where = found["formula_parts_in"]
        return "another formula than {}: parts at step {} in float64, first in {}".format(against, found["formula_parts_at_step"], where)
    if "parts_at_step" in found:
        beyond = "beyond {:g} times what one ulp does".format(CONTROL_FACTOR)
        alike = ", and as far from its own float64" if found.get("parts_as_from_own_float64") else ""
        return "parts from {} at step {}, {}{}, first in {}".format(against, found["parts_at_step"], beyond, alike, found["parts_in"])
    return "agrees with {} to what one ulp does".format(against)


def _read(folder):
    with np.load(os.path.join(folder, "trace.npz"), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
