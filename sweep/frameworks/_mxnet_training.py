"""What updates a Gluon network's weights: MXNet's own optimizers under `defaults`, else the agreed formulas."""

import mxnet as mx
from mxnet import gluon

from sweep.frameworks import _training

OWN_ADAM_EPSILON = 1e-8


def optimizer(network, plan):
    """An object with set_learning_rate(rate), and step(examples), which takes the gradients of a loss that is summed over a batch."""
    # An l2 of the loss is twice as much of the weight in its gradient.
    penalised = _training.penalised(network.layers)
    decays = {name: 2 * plan["l2"] * (name in penalised) for name in network.trained()}
    if plan["recipe"] == "defaults":
        return _own(network, plan, decays)
    return _Agreed(network.trained(), decays, _agreed_sgd(plan) if plan["optimizer"] == "sgd" else _agreed_adam(plan))


def _own(network, plan, decays):
    """Gluon's trainer. Its velocity has the rate inside (momentum x velocity - rate x gradient), so that a new rate acts on later
    gradients alone; its Adam adds the epsilon before the moments are corrected."""
    settings = {"learning_rate": plan["learning_rate"], "wd": 2 * plan["l2"]}
    if plan["optimizer"] == "sgd":
        settings["momentum"] = plan["momentum"]
    else:
        settings.update(beta1=_training.ADAM_BETAS[0], beta2=_training.ADAM_BETAS[1])
        settings["epsilon"] = _training.adam_epsilon(plan, OWN_ADAM_EPSILON)
    everything = {name: parameter for name, parameter in network.forward.collect_params().items() if parameter.grad_req != "null"}
    for parameter in everything.values():
        parameter.wd_mult = 0.0
    for name, parameter in network.trained().items():
        parameter.wd_mult = float(decays[name] > 0)
    return gluon.Trainer(list(everything.values()), plan["optimizer"], settings)


class _Agreed:
    """Updates in elementwise operators: MXNet's fused ones hold the rate and the momentum in float32, whatever the weights are in."""

    def __init__(self, parameters, decays, change):
        self._held = [
            (parameter.data(), parameter.grad(), decays[name], [mx.nd.zeros_like(parameter.data()) for _ in range(2)])
            for name, parameter in parameters.items()
        ]
        self._change, self._rate, self._steps = change, None, 0

    def set_learning_rate(self, rate):
        self._rate = rate

    def step(self, examples):
        self._steps += 1
        for weight, summed, decay, state in self._held:
            gradient = summed / examples
            if decay:
                gradient += decay * weight
            weight -= self._rate * self._change(gradient, state, self._steps)


def _agreed_sgd(plan):
    def change(gradient, state, _steps):
        velocity = state[0]
        velocity *= plan["momentum"]
        velocity += gradient
        return velocity

    return change


def _agreed_adam(plan):
    epsilon = _training.adam_epsilon(plan, OWN_ADAM_EPSILON)
    keep_first, keep_second = _training.ADAM_BETAS

    def change(gradient, state, steps):
        first, second = state
        first *= keep_first
        first += (1 - keep_first) * gradient
        second *= keep_second
        second += (1 - keep_second) * gradient * gradient
        return (first / (1 - keep_first**steps)) / ((second / (1 - keep_second**steps)).sqrt() + epsilon)

    return change
