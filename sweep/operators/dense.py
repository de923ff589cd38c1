"""A matrix product with a constant, and a bias: y[..., o] = b[o] + sum over k of x[..., k] w[k, o].

https://onnx.ai/onnx/operators/onnx__Gemm.html, https://onnx.ai/onnx/operators/onnx__MatMul.html
"""

import numpy as np

from sweep.operators import _faults, _values

PARAMETERS = {
    "features": [1, 2, 3, 4, 7, 8, 17, 64, 128],  # some quantizers leave kernels of fewer than 1,024 numbers alone
    "units": [1, 2, 3, 4, 5, 8, 16, 33, 64],
    "steps": [None, 1, 2, 5],
    "bias": [False, True],
    "values": _values.VALUES,
}


def valid(_parameters):
    return True


def inputs(parameters, rng):
    """(BATCH, features), or (BATCH, steps, features)."""
    return _values.inputs(parameters, rng, _leading(parameters) + (parameters["features"],))


def _leading(parameters):
    return () if parameters["steps"] is None else (parameters["steps"],)


def weights(parameters, rng):
    """kernel (features, units) and, where there is one, bias (units,)."""
    found = {"kernel": _values.kernel(parameters["values"], rng, (parameters["features"], parameters["units"]))}
    if parameters["bias"]:
        found["bias"] = _values.kernel(parameters["values"], rng, (parameters["units"],))
    return found


def reference(_parameters, weights, inputs):
    return inputs.dot(weights["kernel"]) + weights.get("bias", 0)


def magnitude(parameters, weights, inputs):
    return reference(parameters, {name: np.abs(array) for name, array in weights.items()}, np.abs(inputs))


def roundings(parameters):
    return parameters["features"] + 1


def deviations(parameters, weights, inputs, _observed):
    def compute(weights=weights, inputs=inputs):
        return reference(parameters, weights, inputs)

    yield from _faults.of_biases(weights, compute)
    yield from _faults.of_kernels(weights, (), compute)
    yield from _faults.of_channels(inputs, 1, lambda inputs: compute(inputs=inputs))
