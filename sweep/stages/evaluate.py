"""Logits of a deployed model, and the exact ones of a framework's own."""

import os

import numpy as np

from sweep import components, initial, reference
from sweep.inputs import read_test_inputs
from sweep.stages import exact
from sweep.stages.models import BATCH, indices, open_deployed, read_details, read_weights

CHECKED = ("single", "again")
"""Files with logits of the first inputs once more: one by one, and as the first time."""

FEW, FEW_MOVED = 32, 8
EXACT, MOVED = "exact.npy", "moved.npy"


def run(settings, model, data, out):
    """Write `logits.npy`, float32 (N, classes), for N test examples (all where settings["examples"] is None), which of them in `index.npy`,
    and the first of them again, see CHECKED.

    For a framework's own model also `exact.npy`, float64, for the first settings["reference_examples"] of them: the same network
    and weights computed in double precision from the neutral list, and `moved.npy`, float32, for FEW_MOVED of them: computed in single
    precision from weights moved by one ulp; for a user's own file `sweep.stages.exact`. Returns what really ran.
    """
    chosen = indices(settings["examples"], data)
    inputs = read_test_inputs(data, chosen)
    session, runtime, batch = open_deployed(settings, model)
    logits = runtime.predict(session, inputs, batch)
    np.save(os.path.join(out, "index.npy"), chosen)
    np.save(os.path.join(out, "logits.npy"), logits)
    np.save(os.path.join(out, "single.npy"), runtime.predict(session, inputs[:FEW], 1))
    np.save(os.path.join(out, "again.npy"), runtime.predict(session, inputs[:BATCH], batch))
    runs = runtime.describe(session)
    if settings["reference_examples"]:
        found, runs["reference"] = _exact(
            model, lambda given: runtime.predict(session, given, batch), inputs, logits, settings["reference_examples"]
        )
        for name, outputs in found.items():
            np.save(os.path.join(out, name), outputs)
    return {"metrics": {}, "runs": runs}


def _exact(model, predict, inputs, logits, count):
    """EXACT and, of a network, MOVED by file name, and what the former is; neither for a user's own file that has no double precision and
    lets nothing be estimated, and why."""
    details = read_details(model)
    if details["layers"] is not None:
        layers, weights = details["layers"], read_weights(model)
        moved = reference.logits(layers, initial.moved_by_one_ulp(weights, 0), inputs[:FEW_MOVED], np.float32)
        return {EXACT: reference.logits(layers, weights, inputs[:count]), MOVED: moved}, exact.FLOAT64
    own = components.load("formats", details["format"])
    try:
        outputs, source = exact.outputs(own, os.path.join(model, details["file"]), predict, inputs, logits, count)
    except ValueError as error:
        return {}, "none: {}".format(error)
    return {EXACT: outputs}, source


def predict(settings, model, arrays_file, out):
    """Write `logits.npz` with the logits of every array in an .npz of inputs, under the same names."""
    session, runtime, batch = open_deployed(settings, model)
    with np.load(arrays_file, allow_pickle=False) as arrays:
        np.savez(os.path.join(out, "logits.npz"), **{name: runtime.predict(session, arrays[name], batch) for name in arrays.files})
    return {"metrics": {}, "runs": runtime.describe(session)}
