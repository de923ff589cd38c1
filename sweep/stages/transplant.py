"""Carry a trained network's weights to another framework, and prove it by a forward pass."""

import numpy as np

from sweep import images, metrics, reference
from sweep.stages.evaluate import indices
from sweep.stages.models import open_framework, read_details, read_weights, write_model

PROOF_EXAMPLES = 1000


def run(settings, model, data, out):
    """Rebuild the network of folder `model` in this framework and write it to `out`.

    The proof: on up to 1,000 test images the logits lie within `metrics.PARITY_FACTOR` times the float32 error, itself taken against a
    float64 reference that no framework computes. Raises ValueError where they do not, since then the networks are not the same.
    """
    framework, details, weights = open_framework(settings), read_details(model), read_weights(model)
    rebuilt = framework.build(details["layers"], "identical", 0)
    framework.set_weights(rebuilt, weights)
    inputs = images.load(data["folder"], "test", indices(PROOF_EXAMPLES, data))
    exact = reference.logits(details["layers"], weights, inputs)
    difference = float(np.abs(framework.predict(rebuilt, inputs) - exact).max())
    rounding = float(np.abs(reference.logits(details["layers"], weights, inputs, np.float32) - exact).max())
    tolerance = metrics.PARITY_FACTOR * rounding
    if not difference <= tolerance:
        raise ValueError("logits differ by {:.3g} from the float64 reference; {:.3g} is rounding".format(difference, tolerance))
    write_model(framework, rebuilt, details["layers"], dict(settings, classes=details["classes"]), out)
    return {"metrics": {"transplant_logit_diff_max": difference}}
