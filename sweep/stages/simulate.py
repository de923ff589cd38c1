"""What a quantization by itself costs: a network's logits with its weights and activations rounded, from the neutral list, with NumPy."""

import os

import numpy as np

from sweep import simulation
from sweep.inputs import read_test_inputs
from sweep.stages.models import read_details, read_weights


def run(settings, model, evaluation, data, out):
    """Write `simulated.npy`, float64 (n, classes), for the first settings["examples"] of the inputs that `evaluation` was made on."""
    index = np.load(os.path.join(evaluation, "index.npy"), allow_pickle=False)[: settings["examples"]]
    how = simulation.Arithmetic(*settings["arithmetic"])
    inputs = read_test_inputs(data, index)
    np.save(os.path.join(out, "simulated.npy"), simulation.logits(read_details(model)["layers"], read_weights(model), inputs, how))
    return {"metrics": {"simulated_examples": len(index)}}
