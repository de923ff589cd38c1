"""From a sweep to its cells, and to the reason why a cell can't run. Pure: decided by facts, before any work."""

import importlib
import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sweep import attacks, components, settings, variants
from sweep.axes import AXES, FLOAT64, NATIVE, NO_ATTACK, NOTHING, VARIED
from sweep.contracts import Layers
from sweep.errors import ConfigError
from sweep.facts import Component, Facts
from sweep.layers import resolved, shapes
from sweep.schema import Sweep

TRANSPLANT = "transplant:"
UNAVAILABLE = "env_unavailable"

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
    attack: str
    model: str = NOTHING
    operator: str = NOTHING

    def axes(self) -> dict[str, Any]:
        """By name, without those that say that a network is neither a user's own model nor an operator."""
        return {axis: value for axis, value in asdict(self).items() if value != NOTHING or axis not in ("model", "operator")}

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


class Route(NamedTuple):
    """How a framework's model gets to a runtime."""

    name: str
    exporter: Component  # the framework that exports: the model's own, or the one that the network is rebuilt in
    target: str  # the format between the two


def route(framework: Component, runtime: Component, layers: Layers, via: Component | None, facts: Facts) -> Route | None:
    """The route, None where there is none: the first of the formats that the runtime accepts which the framework exports, in its own
    toolchain or in one that offers the export. Else the network may be rebuilt in another framework, which is named in the route and is
    no conversion of the first.
    """
    accepts: Mapping[str, str] = runtime.facts["accepts"]
    for target, name in accepts.items():
        if exporter := facts.exporter(framework, target):
            return Route(name, exporter, target)
    if via is None or via.missing or _unknown_layers(via, layers):
        return None
    for target in accepts:
        if target != NATIVE and (exporter := facts.exporter(via, target)):
            return Route(TRANSPLANT + via.name, exporter, target)
    return None


def way_round(sweep: Sweep, facts: Facts) -> Component | None:
    """The framework that a sweep lets networks be rebuilt in, None where it lets none."""
    return facts.frameworks[sweep.transplant_via] if sweep.transplant_via else None


def unsupported(cell: Cell, sweep: Sweep, facts: Facts, layers: Layers | ValueError) -> str | None:
    """Why this cell can't run, None if it can."""
    framework, runtime = facts.frameworks[cell.framework], facts.runtimes[cell.base("runtime")]
    for kind, component in (("framework", framework), ("runtime", runtime)):
        if component.missing:
            return unavailable(kind, component)
    if isinstance(layers, ValueError):
        return f"{cell.architecture} does not fit {cell.dataset}: {layers}"
    return (
        (trainable(cell, sweep, framework, layers) if cell.weights == "trained" else _same_weights(cell, sweep, facts, layers))
        or _controlled(cell, framework, runtime)
        or _deployable(cell, sweep, framework, runtime, layers, facts)
        or _attackable(cell, framework, layers, facts)
    )


def unavailable(kind: str, component: Component) -> str:
    """The reason of a cell whose framework or runtime is not to be had."""
    return f"{UNAVAILABLE}: {kind} {component.name} can't be used here ({component.missing})"


def trainable(cell: Cell, sweep: Sweep, framework: Component, layers: Layers) -> str | None:
    """Why a framework can't train a cell's network, None if it can."""
    missing = _unknown_layers(framework, layers)
    if missing:
        return f"{framework.name} does not build {', '.join(missing)}"
    if variant := _unknown_variant(framework, resolved(layers, cell.recipe, framework.facts["own"])):
        return f"{framework.name} does not build {variant}"
    optimizer = sweep.training(cell.dataset, cell.architecture).optimizer
    if optimizer not in framework.facts["optimizers"]:
        return f"{framework.name} has no optimizer {optimizer}"
    return None


def _same_weights(cell: Cell, sweep: Sweep, facts: Facts, layers: Layers) -> str | None:
    assert sweep.same_weights_from is not None
    framework, master = facts.frameworks[cell.framework], facts.frameworks[sweep.same_weights_from]
    if master.missing:
        return unavailable("framework", master)
    if reason := trainable(cell, sweep, master, layers):
        return f"no weights to take over: {reason}"
    if missing := _unknown_layers(framework, layers):
        return f"{framework.name} does not build {', '.join(missing)}"
    if variant := _unknown_variant(framework, resolved(layers, cell.recipe, master.facts["own"])):
        return f"no exact counterpart: {master.name} trains {variant} under the recipe {cell.recipe}, which {framework.name} does not build"
    return None


def _controlled(cell: Cell, framework: Component, runtime: Component) -> str | None:
    if cell.control == FLOAT64 and not framework.facts["float64"]:
        return f"{framework.name} has no float64"
    if cell.control == FLOAT64 and not runtime.facts["float64"]:
        return f"{runtime.name} has no float64"
    return None


def _deployable(cell: Cell, sweep: Sweep, framework: Component, runtime: Component, layers: Layers, facts: Facts) -> str | None:
    if route(framework, runtime, layers, way_round(sweep, facts), facts) is None:
        formats = " or ".join(runtime.facts["accepts"])
        lacking = [line for target in runtime.facts["accepts"] for line in facts.not_exported(framework, target)]
        also = f" ({'; '.join(lacking)})" if lacking else ""
        return f"{framework.name} exports no {formats}, which {runtime.name} needs{also}"
    if cell.base("quantization") not in runtime.facts["quantizations"]:
        return f"{runtime.name} has no {cell.base('quantization')}"
    return settings.without(runtime, cell.settings("runtime"), cell.quantization)


def _attackable(cell: Cell, framework: Component, layers: Layers, facts: Facts) -> str | None:
    if cell.attack == NO_ATTACK:
        return None
    if layers[0]["kind"] == "tokens":
        return f"{cell.attack} changes images within [0, 1], and {cell.dataset} has token ids"
    if facts.attacks.missing:
        return f"{UNAVAILABLE}: attacks need {facts.attacks.name} ({facts.attacks.missing})"
    for need in sorted(attacks.ROWS[cell.base("attack")].needs):
        if need.endswith("_gradient") and need.removesuffix("_gradient") not in framework.facts["gradients"]:
            return f"{cell.attack} needs the {need.replace('_', ' ')}, which {framework.name} does not give"
    return None


def _unknown_layers(framework: Component, layers: Layers) -> Sequence[str]:
    return sorted({layer["kind"] for layer in layers} - set(framework.facts["layers"]))


def _unknown_variant(framework: Component, layers: Layers) -> str | None:
    """The first layer with a field whose value the framework does not build, in words."""
    for layer in layers:
        for field, known in framework.facts["variants"].get(layer["kind"], {}).items():
            if layer[field] not in known:
                return f"{layer['kind']} with {field} {layer[field]}"
    return None
