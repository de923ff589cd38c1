"""The agreed optimizers in NumPy: by name, a function of a plan and weights that makes `update(gradients, rate)`."""

import numpy as np

from sweep.frameworks import _training


def _sgd(plan, weights):
    velocities = {name: np.zeros_like(array) for name, array in weights.items()}

    def update(gradients, rate):
        for name, velocity in velocities.items():
            velocity[...] = plan["momentum"] * velocity + gradients[name]
            weights[name] -= rate * velocity

    return update


def _adam(plan, weights):
    epsilon = _training.adam_epsilon(plan, _training.AGREED_ADAM_EPSILON)
    moments = {name: (np.zeros_like(array), np.zeros_like(array)) for name, array in weights.items()}
    steps = [0]

    def update(gradients, rate):
        steps[0] += 1
        corrections = [1 - beta ** steps[0] for beta in _training.ADAM_BETAS]
        for name, (first, second) in moments.items():
            for moment, beta, value in zip((first, second), _training.ADAM_BETAS, (gradients[name], gradients[name] ** 2)):
                moment += (1 - beta) * (value - moment)
            weights[name] -= rate * (first / corrections[0]) / (np.sqrt(second / corrections[1]) + epsilon)

    return update


OPTIMIZERS = {"sgd": _sgd, "adam": _adam}
