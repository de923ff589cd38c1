"""Carry a trained network's weights to another framework, and prove it by a forward pass."""

import os

import numpy as np

from sweep import metrics
from sweep.inputs import read_inputs
from sweep.stages.evaluate import EXACT
from sweep.stages.models import open_framework, read_details, read_weights, write_model
from sweep.stages.train import controlled


def run(settings, model, evaluation, data, out):
    """Rebuild the network of folder `model` in this framework and write it to `out`.

    The proof: on the inputs of its evaluation that have an exact reference, the logits are the source's to `metrics.float32_parity`. Where
    they are not, the fact `proof` is `broken`, the evaluation of the model says the same of its parity, and a diagnosis says why.
    """
    framework, details, weights = open_framework(settings), read_details(model), read_weights(model)
    rebuilt = framework.build(details["layers"], "identical", 0)
    framework.set_weights(rebuilt, weights)
    rebuilt = controlled(framework, details["layers"], "identical", rebuilt, settings["control"])
    exact = np.load(os.path.join(evaluation, EXACT))
    source = np.load(os.path.join(evaluation, "logits.npy"))[: len(exact)]
    index = np.load(os.path.join(evaluation, "index.npy"))[: len(exact)]
    logits = framework.predict(rebuilt, read_inputs(data["folder"], "test", index))
    verdict = metrics.float32_parity(logits, source, metrics.float32_error(source, exact))
    write_model(framework, rebuilt, details["layers"], settings, out)
    found = {"transplant_tolerance": verdict.tolerance}
    compared = metrics.parity(logits, source)
    if "logit_diff_max" in compared:  # no difference where no output is a number
        found["transplant_logit_diff_max"] = compared["logit_diff_max"]
    return {"metrics": found, "facts": {"proof": "holds" if verdict.holds else "broken"}}
