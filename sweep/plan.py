"""What a plan is: cells, and the graph of distinct stages that they are made of."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sweep.grid import Cell

CARRIED_OVER = "transfer"
TRANSFER = f"{CARRIED_OVER}:same-weights"


def carried_over(access: str) -> bool:
    """Whether adversarial inputs were crafted on another model than the one that they were put to."""
    return access.startswith(CARRIED_OVER)


def kind_of_access(access: str) -> str:
    """Without the stage that a set is from, which is another for each model and seed; the attack's `crafted_on` says whose it is."""
    return CARRIED_OVER if carried_over(access) and access != TRANSFER else access


class Host(NamedTuple):
    """Where measurements are taken, and what trains: part of the keys of the stages whose results depend on it."""

    name: str
    cpu: str
    processor: str  # `cpu` or `gpu`


@dataclass(frozen=True)
class PreparedData:
    """A data set as the plan sees it: what it is and which of its examples are for what, by digest."""

    name: str
    digest: str
    splits: str
    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None  # of texts
    dtype: str = "float32"  # of the inputs, as models get them


@dataclass(frozen=True)
class Stage:
    """One unit of work. `settings` and the keys in `inputs` are everything that its result depends on; the key is their hash."""

    kind: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    key: str
    label: str
    gpu: bool = False


class Beside(NamedTuple):
    """Another cell's attack on the same model, within the same kind of ball: its end is awaited, its failure is its own affair."""

    attack: str
    access: str
    settings: Mapping[str, Any]  # but for eps, and the seed
    eps: float
    stage: str


@dataclass(frozen=True)
class PlannedCell:
    """A cell with the stages it is made of, by role, or with the reason why it can't run."""

    cell: Cell
    key: str
    reason: str | None = None
    stages: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    access: str | None = None
    beside: Sequence["Beside"] = ()
    replaces: str = ""  # key of the row that says the same cell's framework or runtime was not to be had


@dataclass(frozen=True)
class Plan:
    """Cells in the order of the grid, stages by key with every input before what reads it."""

    cells: Sequence[PlannedCell]
    stages: Mapping[str, Stage]

    def upstream(self, key: str) -> list[str]:
        """All stages that a stage rests on, itself included, inputs first."""
        found: dict[str, None] = {}
        for above in self.stages[key].inputs.values():
            found.update(dict.fromkeys(self.upstream(above)))
        found[key] = None
        return list(found)


def digest(*parts: Any) -> str:
    """A short hash of JSON-able parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:20]
