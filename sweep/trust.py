"""Whether a robust accuracy is to be trusted: the checks that evaluations of defences are asked for, as sentences. Pure.

A number is suspect where the attack could not do its work (gradients of zero, outputs that change from one call to the next), and where
another attack within the same ball does better: white-box attacks that a black box beats are a sign of masked gradients (Athalye et al.
2018, section 3; Carlini et al. 2019, sections 3 and 4; Croce & Hein 2020 and RobustBench flag the same).
"""

from collections.abc import Iterable
from typing import NamedTuple

REPEAT_LEAST = 1e-4
"""Of the largest logit: far above what another order of float32 sums does, far below what noise that defends does."""
ZERO_LEAST = 0.01
UNDERCUT_LEAST = 0.01
"""Of the inputs, and more than one: two attacks that are equally strong differ by as much."""


class Attacked(NamedTuple):
    """What an attack left of a model."""

    attack: str  # as the axis has it
    eps: float
    robust_accuracy: float
    n: int


def of_model(repeat_difference: float, zero_gradients: int | None, right: int) -> list[str]:
    """What a model's own answers say; `zero_gradients` of the `right` inputs have a loss gradient of nothing but zeros."""
    flags = []
    if not repeat_difference <= REPEAT_LEAST:
        flags.append(f"randomised outputs: logits of the same inputs differ by {repeat_difference:.1g} of the largest")
    if zero_gradients is not None and right and zero_gradients / right > ZERO_LEAST:
        flags.append(f"zero gradients: of {zero_gradients} of {right} inputs")
    return flags


def among(own: Attacked, others: Iterable[Attacked]) -> list[str]:
    """What attacks on the same model say, within the same kind of ball: one on the same inputs that leaves less, in a smaller ball or an
    equal one, makes this number an overestimate. The one that leaves the least is named."""
    stronger = [other for other in others if other.n == own.n and other.eps <= own.eps and _clearly_less(other, own)]
    if not stronger:
        return []
    least = min(stronger, key=lambda other: other.robust_accuracy)
    flags = [f"undercut: {least.attack} within eps {least.eps:.3g} leaves {least.robust_accuracy:.1%}"]
    if any(_base(other.attack) == _base(own.attack) and other.eps < own.eps for other in stronger):
        flags.append("its success does not grow with eps")
    return flags


def _clearly_less(other: Attacked, own: Attacked) -> bool:
    inputs = round((own.robust_accuracy - other.robust_accuracy) * own.n)
    return inputs > max(1, UNDERCUT_LEAST * own.n)


def _base(attack: str) -> str:
    return attack.partition("(")[0]
