"""Batch normalisation at inference: by the moving statistics, for every channel (the last axis).

    y = (x - mean) / sqrt(variance + epsilon) gamma + beta

https://onnx.ai/onnx/operators/onnx__BatchNormalization.html, Ioffe & Szegedy 2015
"""

import numpy as np

from sweep.operators import _values

PARAMETERS = {
    "axes": [2, 4],
    "channels": [1, 2, 3, 8],
    "epsilon": [1e-3, 1e-5, 1e-2, 0.5],
    "variance": ["ordinary", "small", "large"],
    "values": _values.VALUES,
}
_SPATIAL = (3, 4)
_SCALES = {"ordinary": 1.0, "small": 1e-4, "large": 1e4}


def valid(_parameters):
    return True


def inputs(parameters, rng):
    return _values.inputs(parameters, rng, _SPATIAL[: parameters["axes"] - 2] + (parameters["channels"],))


def weights(parameters, rng):
    """gamma (of both signs), beta, mean and variance, each (channels,)."""
    shape = (parameters["channels"],)
    found = {name: _values.array("drawn", rng, shape) for name in ("gamma", "beta", "mean")}
    found["variance"] = (rng.uniform(0.5, 2, shape) * _SCALES[parameters["variance"]]).astype(np.float32)
    return found


def reference(parameters, weights, inputs):
    return _normalized(weights, inputs, parameters["epsilon"])


def _normalized(own, inputs, epsilon):
    scale = own["gamma"] / np.sqrt(own["variance"] + inputs.dtype.type(epsilon))
    return (inputs - own["mean"]) * scale + own["beta"]


def magnitude(parameters, weights, inputs):
    """Of what a graph adds up that multiplies by one number and adds another."""
    scale = np.abs(weights["gamma"]) / np.sqrt(weights["variance"] + inputs.dtype.type(parameters["epsilon"]))
    return (np.abs(inputs) + np.abs(weights["mean"])) * scale + np.abs(weights["beta"])


def roundings(_parameters):
    """Of the sum, the root, two quotients or products, the difference and the sum."""
    return 8


def steps(_parameters):
    return 3


def deviations(parameters, weights, inputs, _observed):
    epsilon = parameters["epsilon"]
    for other in (0.0, 1e-3, 1e-5, 1e-6, 1e-7, 1e-2, 1e-4):
        if other != epsilon:
            yield "epsilon", "an epsilon of {:g}".format(other), lambda other=other: _normalized(weights, inputs, other)
    deviation = np.sqrt(weights["variance"])
    yield "epsilon", "epsilon added outside the root", lambda: _normalized(dict(weights, variance=(deviation + epsilon) ** 2), inputs, 0.0)
    yield "batch_statistics", "the batch's own statistics", lambda: _normalized(dict(weights, **_statistics(inputs)), inputs, epsilon)
    for name, value in (("gamma", 1), ("beta", 0), ("mean", 0)):
        yield ("missing_parameter", "{} taken for {}".format(name, value),
               lambda name=name, value=value: _normalized(dict(weights, **{name: np.full_like(weights[name], value)}), inputs, epsilon))
    yield "variance_or_deviation", "divided by the variance", lambda: _normalized(
        dict(weights, variance=weights["variance"] ** 2), inputs, 0.0
    )
    yield "channel_order", "parameters in reverse order", lambda: _normalized(
        {name: array[::-1] for name, array in weights.items()}, inputs, epsilon
    )


def _statistics(inputs):
    axes = tuple(range(inputs.ndim - 1))
    return {"mean": inputs.mean(axis=axes), "variance": inputs.var(axis=axes)}
