"""The stages that put adversarial inputs to a cell's model, or search for inputs on which it disagrees with its source; each function
returns the key of the stage that it names. Pure."""

from collections.abc import Mapping
from typing import Any

from sweep import attacks
from sweep.collecting import Stages, served_how, source_of
from sweep.facts import Component
from sweep.grid import Cell


def craft(stages: Stages, cell: Cell, source: str, attack: Mapping[str, Any]) -> str:
    """An attack on a framework's own model."""
    component = stages.facts.frameworks[cell.framework]
    settings = stages.framework(component) | _attack(stages, cell, attack, attacks.ROWS[cell.base("attack")].access)
    return stages.add("attack", settings, {"model": source}, f"{stages.stages[source].label} {cell.attack}", (source_of(component),))


def attack_deployed(
    stages: Stages, cell: Cell, model: str, source: str, attack: Mapping[str, Any], access: str, runtime: Component
) -> str:
    """An attack on a deployed model, with its source's gradients where it needs some."""
    settings = stages.serving(cell, runtime) | _attack(stages, cell, attack, access) | {"device": cell.device}
    inputs, modules = {"model": model}, stages.modules(cell, runtime)
    if access == attacks.STRAIGHT_THROUGH:
        component = stages.facts.frameworks[cell.framework]
        settings["twin"], inputs["twin"] = stages.framework(component), source
        modules = (*modules, source_of(component))
    return stages.add("attack", settings, inputs, f"{stages.stages[model].label} {cell.attack}{served_how(cell)}", modules)


def transfer(stages: Stages, cell: Cell, model: str, crafted: str, runtime: Component, access: str) -> str:
    """A set that was crafted on another model, put to a cell's."""
    settings = stages.serving(cell, runtime) | stages.dataset(cell) | {"access": access, "device": cell.device, "seed": cell.seed}
    label = f"{stages.stages[model].label} {cell.attack} carried over{served_how(cell)}"
    inputs = {"model": model, "attack": crafted}
    return stages.add("attack", settings, inputs, label, stages.modules(cell, runtime))


def search(stages: Stages, cell: Cell, model: str, source: str, runtime: Component) -> str:
    """Inputs near the test images on which a deployed model and its source disagree."""
    component, wanted = stages.facts.frameworks[cell.framework], stages.sweep.search
    settings = stages.serving(cell, runtime) | stages.dataset(cell) | {
        "twin": stages.framework(component), "examples": wanted.examples, "eps": wanted.eps, "rounds": wanted.rounds,
        "search_seed": wanted.seed, "device": cell.device, "seed": cell.seed,
    }
    modules = (*stages.modules(cell, runtime), source_of(component))
    return stages.add("search", settings, {"model": model, "twin": source}, f"{stages.stages[model].label}{served_how(cell)}", modules)


def _attack(stages: Stages, cell: Cell, attack: Mapping[str, Any], access: str) -> dict[str, Any]:
    return stages.dataset(cell) | {
        "attack": cell.base("attack"),
        "attack_settings": {name: value for name, value in attack.items() if name != attacks.CRAFTED_ON},
        "attacker": {"version": stages.facts.attacks.version, "lock": stages.facts.attacks.lock},
        "access": access,
        "examples": stages.sweep.attack.of(cell.base("attack")),
        "seed": cell.seed,
    }
