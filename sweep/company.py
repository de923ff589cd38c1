"""Which attacks are on the same model, within the same kind of ball: each of them says something of the others' figures. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sweep.plan import Beside, PlannedCell

APART = ("attack_eps", "attack_seed")
"""Params in which two runs of the same attack may differ."""


def beside_each_other(cells: Sequence[PlannedCell]) -> list[PlannedCell]:
    """The cells, each of an attack with all others' on its model under its norm."""
    groups: dict[tuple[str, Any], dict[str, Beside]] = {}
    for planned in cells:
        if "attack" in planned.stages:
            groups.setdefault(_ball(planned), {}).setdefault(planned.stages["attack"], of(planned))
    return [
        replace(planned, beside=[other for key, other in groups[_ball(planned)].items() if key != planned.stages["attack"]])
        if "attack" in planned.stages else planned
        for planned in cells
    ]


def of(planned: PlannedCell) -> Beside:
    """A cell's attack as the others see it."""
    settings = {name: value for name, value in planned.params.items() if name.startswith("attack_") and name not in APART}
    settings["attack"] = planned.cell.base("attack")
    return Beside(planned.cell.attack, planned.access or "", settings, planned.params["attack_eps"], planned.stages["attack"])


def _ball(planned: PlannedCell) -> tuple[str, Any]:
    return planned.stages["model"], planned.params["attack_norm"]
