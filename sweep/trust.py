"""Whether a robust accuracy is to be trusted: the checks that evaluations of defences are asked for, as sentences. Pure.

A number is suspect where the attack could not do its work (gradients of zero, outputs that change from one call to the next), and where
another attack within the same ball does better: white-box attacks that a black box beats are a sign of masked gradients (Athalye et al.
2018, section 3; Carlini et al. 2019, sections 3 and 4; Croce & Hein 2020 and RobustBench flag the same).
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sweep.attacks import DECISION, SCORE, WHITE_BOX
from sweep.statistics import share_interval

REPEAT_LEAST = 1e-4
"""Of the largest logit: far above what another order of float32 sums does, far below what noise that defends does."""
ZERO_LEAST = 0.01
UNDERCUT_LEAST, UNDERCUT_FEWEST = 0.01, 5
"""Of the inputs, and so many: of fewer that one attack turned and the other did not, none the other way round, a sign test says nothing."""
GROWN, LEFT_LEAST = 1.5, 0.05
"""A ball so many times larger has room for more successes, where so much robust accuracy is left."""


class Attacked(NamedTuple):
    """What an attack left of a model."""

    attack: str  # as the axis has it
    access: str
    settings: Mapping[str, Any]  # but for eps, and the seed
    eps: float
    robust_accuracy: float
    n: int


def of_model(figures: Mapping[str, float]) -> list[str]:
    """What a model's own answers say, by the metrics of the attack that was crafted on it."""
    flags = []
    repeat = figures.get("attack_repeat_difference", 0.0)
    if not repeat <= REPEAT_LEAST:
        flags.append(f"randomised outputs: logits of the same inputs differ by {repeat:.1g} of the largest")
    zeros, attacked = figures.get("attack_zero_gradients", 0.0), figures.get("attacked", 0.0)
    if attacked and zeros / attacked > ZERO_LEAST:
        flags.append(f"zero gradients: of {zeros:.0f} of {attacked:.0f} inputs")
    return flags


def among(own: Attacked, others: Iterable[Attacked]) -> list[str]:
    """What attacks on the same model say, within the same kind of ball: one that leaves less, in a smaller ball or an equal one, makes this
    number an overestimate; a black box that does so to white-box gradients is named before any other, else the one that leaves the
    least. And the same attack in a clearly smaller ball should have left more."""
    others = list(others)
    flags = []
    if stronger := [other for other in others if other.eps <= own.eps and _clearly_less(other, own)]:
        blind = [other for other in stronger if own.access == WHITE_BOX and other.access in (SCORE, DECISION)]
        least = min(blind or stronger, key=lambda other: other.robust_accuracy)
        said = "undercut by a black box" if blind else "undercut"
        flags.append(f"{said}: {least.attack} within eps {least.eps:.3g} leaves {least.robust_accuracy:.1%}")
    smaller = [other for other in others if other.eps * GROWN <= own.eps and _same_but_eps(other, own)]
    if own.robust_accuracy > LEFT_LEAST and any(other.robust_accuracy <= own.robust_accuracy for other in smaller):
        flags.append("its success does not grow with eps")
    return flags


def _same_but_eps(other: Attacked, own: Attacked) -> bool:
    return (other.access, other.settings, other.n) == (own.access, own.settings, own.n)


def _clearly_less(other: Attacked, own: Attacked) -> bool:
    if other.n != own.n:  # the start of the same list: another draw of inputs, as it were
        return share_interval(other.robust_accuracy, other.n).high < own.robust_accuracy
    return round((own.robust_accuracy - other.robust_accuracy) * own.n) >= max(UNDERCUT_FEWEST, UNDERCUT_LEAST * own.n)
