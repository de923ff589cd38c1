"""What recurrent operators share. Their definition and the known ways to get it wrong are those of the layers of that kind."""

import numpy as np

from sweep import hypotheses
from sweep import reference as layers
from sweep.operators import _values

PARAMETERS = {
    "steps": [1, 2, 3, 6],
    "features": [1, 2, 3, 8],
    "units": [1, 2, 3, 8],
    "return_sequences": [False, True],
    "values": ["drawn"],
}
_OF_A_LAYER = ("scale", "clipping", "reduced_precision")  # faults that `_faults.of_values` has for every operator


def valid(_parameters):
    return True


def inputs(parameters, rng):
    return _values.inputs(parameters, rng, (parameters["steps"], parameters["features"]))


def weights(parameters, rng, gates):
    """Drawn small enough that gates are open in part."""
    features, units = parameters["features"], parameters["units"]
    shapes = {"kernel": (features, gates * units), "recurrent_kernel": (units, gates * units), "bias": (gates * units,)}
    return {name: _values.array("drawn", rng, shapes[name]) / np.float32(np.sqrt(shapes[name][0]) if len(shapes[name]) > 1 else 2)
            for name in sorted(shapes)}


def reference(layer, weights, inputs):
    return layers.apply(layer, weights, inputs)


def magnitude(layer, weights, inputs):
    """States are at most 1; what goes into a gate is rounded relative to its own terms, and the gate passes on a quarter of that."""
    terms = np.abs(inputs).max() * np.abs(weights["kernel"]).sum(axis=0).max() + np.abs(weights["recurrent_kernel"]).sum(axis=0).max()
    return np.full_like(reference(layer, weights, inputs), 1 + terms / 4)


def roundings(parameters):
    """For every step the terms of its sums and the functions of its gates."""
    return parameters["steps"] * (parameters["features"] + parameters["units"] + 32)


def steps(parameters):
    """For every step the gates, the products with them, and the states."""
    return 8 * parameters["steps"]


def span(_parameters, _weights, _inputs):
    return -1.0, 1.0


def deviations(layer, weights, inputs, observed):
    view = hypotheses.View(weights, [inputs], observed, None)
    for hypothesis in hypotheses.of(layer, weights, hypotheses.Surroundings(observed.shape[1:], None, False)):
        if hypothesis.fault not in _OF_A_LAYER:
            yield hypothesis.fault, hypothesis.detail, lambda hypothesis=hypothesis: _array(hypothesis.compute(view))


def _array(computed):
    return computed.values if isinstance(computed, hypotheses.Coarse) else computed
