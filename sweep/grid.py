"""From a sweep to its cells, and from an architecture to its network. Pure."""

import importlib
import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweep import components, variants
from sweep.axes import ALL, AXES, NOTHING, VARIED
from sweep.contracts import Layers
from sweep.errors import ConfigError
from sweep.layers import shapes
from sweep.schema import Sweep

AXES_OF = {
    "architecture": AXES[:-2],
    "model": ("model", "dataset", "seed", "runtime", "quantization", "device", "attack"),
    "operator": ("operator", "framework", "runtime", "quantization", "device"),
}


@dataclass(frozen=True)
class Cell:
    """One point of the grid: what to run, never how or where."""

    framework: str
    dataset: str
    architecture: str
    recipe: str
    seed: int
    weights: str
    control: str
    runtime: str
    quantization: str
    device: str
    corruption: str
    attack: str
    model: str = NOTHING
    operator: str = NOTHING

    @property
    def kind(self) -> str:
        """What the cell is of: `operator`, `model`, else `architecture`."""
        return "operator" if self.operator != NOTHING else "model" if self.model != NOTHING else "architecture"

    def axes(self) -> dict[str, Any]:
        """Those that mean something for its kind, by name."""
        return {axis: getattr(self, axis) for axis in AXES_OF[self.kind]}

    def base(self, axis: str) -> str:
        """The value of an axis without the settings that it may have."""
        return variants.base(getattr(self, axis))

    def settings(self, axis: str) -> Mapping[str, Any]:
        return variants.parse(getattr(self, axis)).settings


@dataclass(frozen=True)
class DatasetFacts:
    """What the grid needs to know of a prepared data set."""

    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None  # of texts


def expand(sweep: Sweep) -> list[Cell]:
    """The cells of all grids, in order, each once, without the excluded ones."""
    cells: dict[Cell, None] = {}
    for grid in sweep.grid:
        axes = grid.model_dump() | {"seed": grid.seed or sweep.seeds}
        if ALL in grid.operator:
            axes["operator"] = components.names("operators")
        for values in itertools.product(*(axes[axis] for axis in AXES)):
            cell = Cell(*values)
            if not any(_matches(cell, rule) for rule in sweep.exclude):
                cells[cell] = None
    return list(cells)


def _matches(cell: Cell, rule: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a rule is of this cell; a value without settings is of all its variants."""
    return all(getattr(cell, axis) in values or (axis in VARIED and cell.base(axis) in values) for axis, values in rule.items())


def layers_of(architecture: str, facts: DatasetFacts) -> Layers:
    """The neutral list of an architecture: a component, or a user's `module:function` of the same signature.

    Raises ConfigError where there is no such function, ValueError where the inputs do not fit.
    """
    build = _builder(architecture)
    try:
        found: Layers = build(facts.shape, facts.classes, **_texts(build, facts))
        sizes = shapes(found)
        outputs, inputs = sizes[found[-1]["name"]], sizes[found[0]["name"]]
    except ValueError:
        raise  # the inputs do not fit, which is a skip
    except (Exception, SystemExit) as error:  # a user's code can raise anything
        raise ConfigError(f"grid.architecture: {architecture!r} gives no network: {type(error).__name__}: {error}") from None
    if inputs != tuple(facts.shape):
        raise ConfigError(f"grid.architecture: {architecture!r} starts with inputs of shape {inputs}, and the data's are {facts.shape}")
    if outputs != (facts.classes,):
        raise ConfigError(f"grid.architecture: {architecture!r} ends in outputs of shape {outputs}, for {facts.classes} classes")
    return found


def _texts(build: Any, facts: DatasetFacts) -> dict[str, int]:
    """What an architecture gets besides where the inputs are texts. Raises ValueError where it doesn't take them."""
    if facts.vocabulary is None:
        return {}
    if "vocabulary" not in inspect.signature(build).parameters:
        raise ValueError("it reads images, not texts")
    return {"vocabulary": facts.vocabulary}


def _builder(architecture: str) -> Any:
    if ":" not in architecture:
        return components.load("architectures", architecture).layers
    module, function = architecture.split(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"grid.architecture: {architecture!r} can't be loaded: {error}") from None
