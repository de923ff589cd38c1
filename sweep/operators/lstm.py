"""Long short-term memory over a short sequence, as `sweep.layers` states it.

https://onnx.ai/onnx/operators/onnx__LSTM.html, https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
"""

from sweep.operators import _recurrent

PARAMETERS = dict(_recurrent.PARAMETERS, recurrent_activation=["sigmoid", "hard_sigmoid"])
valid = _recurrent.valid
inputs = _recurrent.inputs
_GATES = 4


def layer(parameters):
    return {"kind": "lstm", "name": "lstm", "inputs": ["input"], "units": parameters["units"],
            "return_sequences": parameters["return_sequences"], "recurrent_activation": parameters["recurrent_activation"]}


def weights(parameters, rng):
    """kernel (features, 4 units), recurrent_kernel (units, 4 units), bias (4 units,); gates i, f, g, o."""
    return _recurrent.weights(parameters, rng, _GATES)


def reference(parameters, weights, inputs):
    return _recurrent.reference(layer(parameters), weights, inputs)


def magnitude(parameters, weights, inputs):
    return _recurrent.magnitude(layer(parameters), weights, inputs)


roundings = _recurrent.roundings
steps = _recurrent.steps
span = _recurrent.span


def deviations(parameters, weights, inputs, observed):
    return _recurrent.deviations(layer(parameters), weights, inputs, observed)
