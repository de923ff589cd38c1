"""A framework proves that it works where it is installed: a forward pass against the NumPy reference."""

import numpy as np

from sweep import components, initial, metrics, reference
from sweep.layers import batch_norm, conv2d, dense, flatten, image_input, max_pool, relu, resolved
from sweep.worker import describe

IMAGES = 16
_FULL = [
    image_input(12, 12, 3), conv2d("conv1", "input", 8, 3, padding=((1, 1), (1, 1))), batch_norm("norm", "conv1"), relu("relu1", "norm"),
    max_pool("pool", "relu1"), conv2d("conv2", "pool", 8, 3), relu("relu2", "conv2"), flatten("flatten", "relu2"),
    dense("logits", "flatten", 10),
]
_LEAST = [image_input(12, 12, 3), flatten("flatten", "input"), dense("logits", "flatten", 10)]


def run(module):
    """{"version", "difference", "tolerance"} of a framework's logits on random images; raises ValueError where they are not right."""
    framework = components.load("frameworks", module)
    framework.configure(1)
    known = set(framework.FACTS["layers"])
    network = resolved(_FULL if known >= {layer["kind"] for layer in _FULL} else _LEAST, "identical", framework.FACTS["own"])
    model, weights = framework.build(network, "identical", 0), initial.weights(network, 0)
    framework.set_weights(model, weights)
    images = np.random.RandomState(0).rand(IMAGES, 12, 12, 3).astype(np.float32)
    exact = reference.logits(network, weights, images)
    rounding = float(np.abs(reference.logits(network, weights, images, np.float32) - exact).max())
    difference, tolerance = float(np.abs(framework.predict(model, images) - exact).max()), metrics.PARITY_FACTOR * rounding
    if not difference <= tolerance:
        raise ValueError("{} gives logits that are off by {:.3g}; {:.3g} is rounding".format(module, difference, tolerance))
    return {"version": describe.version(framework.FACTS["distribution"]), "difference": difference, "tolerance": tolerance}
