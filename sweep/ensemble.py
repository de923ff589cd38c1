"""AutoAttack as ART composes it, for any estimator: ART's own class has its two losses for two of its estimators alone."""

from typing import Any

import numpy as np
from art.attacks.evasion import AutoAttack as ArtAutoAttack
from art.attacks.evasion import AutoProjectedGradientDescent, DeepFool, SquareAttack

from sweep.estimator import DifferenceOfLogitsRatio, WhiteBox

SQUARE_RESTARTS = 5


class AutoAttack:
    """AutoPGD on the cross-entropy and on the difference of logits ratio, DeepFool, Square: each on the inputs that are still right.

    Croce & Hein 2020, section 5, has targeted AutoPGD and FAB in the second and third place; these are ART's (`AutoAttack` without
    `attacks`), with the estimator's losses; the second where there are more than two classes.
    """

    def __init__(
        self, estimator: WhiteBox, norm: Any, eps: float, targeted: bool, max_iter: int, restarts: int, batch_size: int
    ) -> None:
        ball = {"norm": norm, "eps": eps, "batch_size": batch_size, "verbose": False}
        steps = {"eps_step": eps / 4, "max_iter": max_iter, "nb_random_init": restarts}
        attacks = [AutoProjectedGradientDescent(estimator, **ball, **steps)]
        if estimator.nb_classes > 2:  # of two the ratio is the same everywhere
            attacks.append(AutoProjectedGradientDescent(DifferenceOfLogitsRatio(estimator), **ball, **steps))
        attacks += [
            DeepFool(estimator, max_iter=max_iter, epsilon=1e-3, nb_grads=10, batch_size=batch_size, verbose=False),
            SquareAttack(estimator, **ball, max_iter=max_iter, nb_restarts=SQUARE_RESTARTS),
        ]
        self._attack = ArtAutoAttack(estimator, norm=norm, eps=eps, attacks=attacks, batch_size=batch_size, targeted=targeted)

    def generate(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Adversarial inputs float32 (N, H, W, C) of inputs and labels int64 (N,)."""
        return np.asarray(self._attack.generate(x=x, y=y), np.float32)
