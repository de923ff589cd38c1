"""How a cell's model gets to its runtime, and why a cell can't run. Pure: decided by facts, before any work."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sweep import attacks, corruptions, settings
from sweep.axes import FLOAT64, NATIVE, NO_ATTACK, NO_CORRUPTION
from sweep.contracts import Layers
from sweep.facts import Component, Facts
from sweep.grid import Cell
from sweep.layers import resolved
from sweep.own_model import check_inputs
from sweep.schema import Sweep

TRANSPLANT = "transplant:"
UNAVAILABLE = "env_unavailable"


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


def own_route(own: Component, runtime: Component) -> Route | None:
    """The route of a user's own model, None where there is none: as it is where the runtime accepts that, else by the format's exports."""
    if NATIVE in runtime.facts["accepts"]:
        return Route(NATIVE, own, NATIVE)
    for target in own.facts["exports"]:
        if target in runtime.facts["accepts"]:
            return Route(runtime.facts["accepts"][target], own, target)
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
        or _corruptible(cell, layers)
        or _attackable(cell, sweep, layers, facts)
    )


def unsupported_operator(cell: Cell, facts: Facts) -> str | None:
    """Why an operator's probes can't run, None if they can."""
    framework, runtime = facts.frameworks[cell.framework], facts.runtimes[cell.base("runtime")]
    for kind, component in (("framework", framework), ("runtime", runtime)):
        if component.missing:
            return unavailable(kind, component)
    if cell.operator not in framework.facts.get("operators", ()):
        return f"{framework.name} builds no {cell.operator}"
    return _served(cell, framework, runtime, route(framework, runtime, [], None, facts), facts)


def unsupported_model(cell: Cell, facts: Facts, shape: Sequence[int], dtype: str) -> str | None:
    """Why a user's own model can't run on inputs of this shape (without the batch) and type, None if it can."""
    model, runtime = facts.models[cell.model], facts.runtimes[cell.base("runtime")]
    own = facts.formats[model.format]
    for kind, component in (("format", own), ("runtime", runtime)):
        if component.missing:
            return unavailable(kind, component)
    if model.failure_class:
        return f"{model.failure_class}: {model.message}"
    if reason := check_inputs(model, tuple(shape), dtype):
        return reason
    if cell.attack != NO_ATTACK:
        return f"{cell.attack} needs to know how inputs are laid out and scaled, and of {cell.model}, which is a file, nothing says so"
    if own_route(own, runtime) is None:
        return f"{own.name} can't be given on as {' or '.join(runtime.facts['accepts'])}, which {runtime.name} needs"
    if cell.base("quantization") not in runtime.facts["quantizations"]:
        return f"{runtime.name} has no {cell.base('quantization')}"
    return settings.without(runtime, cell.settings("runtime"), cell.quantization)


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
    return _served(cell, framework, runtime, route(framework, runtime, layers, way_round(sweep, facts), facts), facts)


def _served(cell: Cell, framework: Component, runtime: Component, way: Route | None, facts: Facts) -> str | None:
    """Why a runtime can't serve what it would get on this way."""
    if way is None:
        formats = " or ".join(runtime.facts["accepts"])
        lacking = [line for target in runtime.facts["accepts"] for line in facts.not_exported(framework, target)]
        also = f" ({'; '.join(lacking)})" if lacking else ""
        return f"{framework.name} exports no {formats}, which {runtime.name} needs{also}"
    if cell.base("quantization") not in runtime.facts["quantizations"]:
        return f"{runtime.name} has no {cell.base('quantization')}"
    return settings.without(runtime, cell.settings("runtime"), cell.quantization)


def _corruptible(cell: Cell, layers: Layers) -> str | None:
    if cell.corruption == NO_CORRUPTION:
        return None
    if layers[0]["kind"] == "tokens":
        return f"{cell.corruption} changes images, and {cell.dataset} has token ids"
    if (channels := layers[0]["shape"][-1]) not in (valid := corruptions.ROWS[cell.base("corruption")].channels):
        return f"{cell.corruption} is of images with {' or '.join(map(str, valid))} channels, and {cell.dataset} has {channels}"
    if cell.attack != NO_ATTACK:
        return "attacks start from the data set's own images, not from corrupted ones"
    return None


def _attackable(cell: Cell, sweep: Sweep, layers: Layers, facts: Facts) -> str | None:
    if cell.attack == NO_ATTACK:
        return None
    if layers[0]["kind"] == "tokens":
        return f"{cell.attack} changes images within [0, 1], and {cell.dataset} has token ids"
    if facts.attacks.missing:
        return f"{UNAVAILABLE}: attacks need {facts.attacks.name} ({facts.attacks.missing})"
    name, framework = cell.base("attack"), facts.frameworks[cell.framework]
    for place in attacks.places(name, sweep.attack_settings(cell.attack)) - {cell.framework}:
        framework, other = facts.frameworks[place], replace(cell, framework=place)
        if framework.missing:
            return unavailable("framework", framework)
        lacking = trainable(other, sweep, framework, layers) if cell.weights == "trained" else _same_weights(other, sweep, facts, layers)
        if lacking:
            return f"nothing to craft on: {lacking}"
    for need in sorted(attacks.ROWS[name].needs):
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
