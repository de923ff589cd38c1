"""Gated recurrent unit over a short sequence, as `sweep.layers` states it.

https://onnx.ai/onnx/operators/onnx__GRU.html, https://docs.pytorch.org/docs/stable/generated/torch.nn.GRU.html
"""

from sweep.operators import _recurrent, _values

PARAMETERS = dict(_recurrent.PARAMETERS, recurrent_activation=["sigmoid", "hard_sigmoid"], reset_after=[True, False])
valid = _recurrent.valid
inputs = _recurrent.inputs
_GATES = 3


def layer(parameters):
    return {"kind": "gru", "name": "gru", "inputs": ["input"], "units": parameters["units"],
            "return_sequences": parameters["return_sequences"], "recurrent_activation": parameters["recurrent_activation"],
            "reset_after": parameters["reset_after"]}


def weights(parameters, rng):
    """kernel (features, 3 units), recurrent_kernel (units, 3 units), bias (3 units,), and where the reset comes after the product
    recurrent_bias (3 units,); gates z, r, h."""
    found = _recurrent.weights(parameters, rng, _GATES)
    if parameters["reset_after"]:
        found["recurrent_bias"] = _values.array("drawn", rng, (_GATES * parameters["units"],))
    return found


def reference(parameters, weights, inputs):
    return _recurrent.reference(layer(parameters), weights, inputs)


def magnitude(parameters, weights, inputs):
    return _recurrent.magnitude(layer(parameters), weights, inputs)


roundings = _recurrent.roundings
steps = _recurrent.steps
span = _recurrent.span


def deviations(parameters, weights, inputs, observed):
    return _recurrent.deviations(layer(parameters), weights, inputs, observed)
