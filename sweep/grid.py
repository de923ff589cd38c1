"""From a sweep to its cells, and to the reason why a cell can't run. Pure: decided by facts, before any work."""

import importlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sweep import attacks, components
from sweep.config import AXES, NO_ATTACK, Sweep
from sweep.contracts import Layers
from sweep.errors import ConfigError
from sweep.facts import Component, Facts
from sweep.layers import shapes

TRANSPLANT = "transplant:"
NATIVE = "native"
"""The format that is a framework's own: every framework writes it, and it needs no conversion."""


@dataclass(frozen=True)
class Cell:
    """One point of the grid: what to run, never how or where."""

    framework: str
    dataset: str
    architecture: str
    recipe: str
    seed: int
    weights: str
    runtime: str
    quantization: str
    device: str
    attack: str

    def axes(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class DatasetFacts:
    """What the grid needs to know of a prepared data set."""

    shape: tuple[int, int, int]
    classes: int


def expand(sweep: Sweep) -> list[Cell]:
    """The cells of all grids, in order, each once, without the excluded ones."""
    cells: dict[Cell, None] = {}
    for grid in sweep.grid:
        for values in itertools.product(*(getattr(grid, axis) for axis in AXES)):
            cell = Cell(*values)
            if not any(all(getattr(cell, axis) in values for axis, values in rule.items()) for rule in sweep.exclude):
                cells[cell] = None
    return list(cells)


def layers_of(architecture: str, facts: DatasetFacts) -> Layers:
    """The neutral list of an architecture: a component, or a user's `module:function` of the same signature.

    Raises ConfigError where there is no such function, ValueError where the images do not fit.
    """
    build = _builder(architecture)
    try:
        found: Layers = build(facts.shape, facts.classes)
        outputs = shapes(found)[found[-1]["name"]]
    except ValueError:
        raise  # the images do not fit, which is a skip
    except (Exception, SystemExit) as error:  # a user's code can raise anything
        raise ConfigError(f"grid.architecture: {architecture!r} gives no network: {type(error).__name__}: {error}") from None
    if outputs != (facts.classes,):
        raise ConfigError(f"grid.architecture: {architecture!r} ends in outputs of shape {outputs}, for {facts.classes} classes")
    return found


def _builder(architecture: str) -> Any:
    if ":" not in architecture:
        return components.load("architectures", architecture).layers
    module, function = architecture.split(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"grid.architecture: {architecture!r} can't be loaded: {error}") from None


class Route(NamedTuple):
    """How a framework's model gets to a runtime."""

    name: str
    exporter: str  # the framework that exports: the model's own, or the one that the network is rebuilt in
    target: str  # the format between the two


def route(framework: Component, runtime: Component, layers: Layers, via: Component | None) -> Route | None:
    """The route, None where there is none.

    A direct route needs a format that the one exports and the other accepts. Else the network may be rebuilt in another framework,
    which is named in the route and is no conversion of the first.
    """
    accepts: Mapping[str, str] = runtime.facts["accepts"]
    for target in framework.facts["exports"]:
        if target in accepts:
            return Route(accepts[target], framework.name, target)
    if via is None or via.missing or _unknown_layers(via, layers):
        return None
    for target in via.facts["exports"]:
        if target in accepts and target != NATIVE:
            return Route(TRANSPLANT + via.name, via.name, target)
    return None


def way_round(sweep: Sweep, facts: Facts) -> Component | None:
    """The framework that a sweep lets networks be rebuilt in, None where it lets none."""
    return facts.frameworks[sweep.transplant_via] if sweep.transplant_via else None


def unsupported(cell: Cell, sweep: Sweep, facts: Facts, layers: Layers | ValueError) -> str | None:
    """Why this cell can't run, None if it can."""
    framework, runtime = facts.frameworks[cell.framework], facts.runtimes[cell.runtime]
    for kind, component in (("framework", framework), ("runtime", runtime)):
        if component.missing:
            return f"env_unavailable: {kind} {component.name} can't be imported here ({component.missing})"
    if isinstance(layers, ValueError):
        return f"{cell.architecture} does not fit {cell.dataset}: {layers}"
    return (
        _trainable(cell, sweep, framework, layers)
        or _same_weights(cell, sweep, facts, layers)
        or _deployable(cell, sweep, framework, runtime, layers, facts)
        or _attackable(cell, framework, facts)
    )


def _trainable(cell: Cell, sweep: Sweep, framework: Component, layers: Layers) -> str | None:
    missing = _unknown_layers(framework, layers)
    if missing:
        return f"{framework.name} does not build {', '.join(missing)}"
    optimizer = sweep.training(cell.dataset, cell.architecture).optimizer
    if optimizer not in framework.facts["optimizers"]:
        return f"{framework.name} has no optimizer {optimizer}"
    return None


def _same_weights(cell: Cell, sweep: Sweep, facts: Facts, layers: Layers) -> str | None:
    if cell.weights != "same" or cell.framework == sweep.same_weights_from:
        return None
    assert sweep.same_weights_from is not None
    master = facts.frameworks[sweep.same_weights_from]
    if master.missing:
        return f"env_unavailable: framework {master.name} can't be imported here ({master.missing})"
    reason = _trainable(cell, sweep, master, layers)
    return f"no weights to take over: {reason}" if reason else None


def _deployable(cell: Cell, sweep: Sweep, framework: Component, runtime: Component, layers: Layers, facts: Facts) -> str | None:
    if route(framework, runtime, layers, way_round(sweep, facts)) is None:
        formats = " or ".join(runtime.facts["accepts"])
        return f"{framework.name} exports no {formats}, which {runtime.name} needs"
    if cell.quantization not in runtime.facts["quantizations"]:
        return f"{runtime.name} has no {cell.quantization}"
    return None


def _attackable(cell: Cell, framework: Component, facts: Facts) -> str | None:
    if cell.attack == NO_ATTACK:
        return None
    if facts.attacks.missing:
        return f"env_unavailable: attacks need {facts.attacks.name} ({facts.attacks.missing})"
    for need in sorted(attacks.ROWS[cell.attack].needs):
        if need.endswith("_gradient") and need.removesuffix("_gradient") not in framework.facts["gradients"]:
            return f"{cell.attack} needs the {need.replace('_', ' ')}, which {framework.name} does not give"
    return None


def _unknown_layers(framework: Component, layers: Layers) -> Sequence[str]:
    return sorted({layer["kind"] for layer in layers} - set(framework.facts["layers"]))
