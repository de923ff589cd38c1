"""What the schema of a sweep file can't say: names of components and rows, wherever they stand, and what goes with what.

Whether a runtime has a setting that an axis gives it is asked later, when its facts are known.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sweep import attacks, components, corruptions, quantization, toolchain, variants
from sweep.axes import (
    ALL,
    AXES,
    CONTROLS,
    CUSTOM,
    NO_ATTACK,
    NO_CORRUPTION,
    NOTHING,
    OWN_INPUTS,
    RECIPES,
    STAGES_EXPERIMENT,
    VARIED,
    WEIGHTS,
)
from sweep.errors import nearest

if TYPE_CHECKING:
    from sweep.schema import Sweep, Training

def values(sweep: "Sweep") -> None:
    """Raises ValueError, which pydantic reports."""
    known = _known()
    for number, grid in enumerate(sweep.grid):
        for axis in known:
            where = f"grid.{axis}" if len(sweep.grid) == 1 else f"grid.{number}.{axis}"
            for value in getattr(grid, axis):
                _check(where, value, known[axis], axis)
    _exclusions(sweep, known)
    _settings(sweep, known)
    _frameworks(sweep, known)
    if sweep.name == STAGES_EXPERIMENT:
        raise ValueError(f"name: {sweep.name!r} is the experiment that all sweeps of a store share; choose another")
    for component in sweep.options:
        _check("options", component, sorted({*known["framework"], *known["runtime"]}))
    _check("measure.reference", sweep.measure.reference, known["runtime"], "runtime")


def _known() -> dict[str, Sequence[Any]]:
    """The values of each axis that a list has."""
    return {
        "framework": list(toolchain.offers("frameworks")),
        "dataset": components.names("datasets"),
        "architecture": components.names("architectures"),
        "recipe": RECIPES,
        "weights": WEIGHTS,
        "control": CONTROLS,
        "runtime": list(toolchain.offers("runtimes")),
        "quantization": list(quantization.ROWS),
        "device": components.names("devices"),
        "corruption": [NO_CORRUPTION, *corruptions.ROWS],
        "attack": [NO_ATTACK, *attacks.ROWS],
        "operator": [ALL, *components.names("operators")],
    }


def _exclusions(sweep: "Sweep", known: Mapping[str, Sequence[Any]]) -> None:
    for rule in sweep.exclude:
        if not rule:
            raise ValueError("exclude: a rule without an axis would exclude every cell")
        for axis, excluded in rule.items():
            _check("exclude", axis, AXES)
            if not excluded:
                raise ValueError(f"exclude.{axis} is empty")
            for value in excluded:
                if axis == "seed" and type(value) is not int:
                    raise ValueError(f"exclude.seed: a seed is a whole number, not {value!r}")
                if axis in known:
                    _check(f"exclude.{axis}", value, known[axis], axis)


def _settings(sweep: "Sweep", known: Mapping[str, Sequence[Any]]) -> None:
    for dataset, data in sweep.data.items():
        _check("data", dataset, known["dataset"])
        settings = components.load("datasets", dataset).SETTINGS
        for setting in data.settings:
            if setting not in settings:
                hint = nearest(setting, settings) if settings else "; it has no settings"
                raise ValueError(f"data.{dataset}.settings: there is no {setting!r}{hint}")
    for axis in ("dataset", "architecture"):
        for value, changed in getattr(sweep.settings, axis).items():
            _check(f"settings.{axis}", value, known[axis], axis)
            _partial_training(f"settings.{axis}.{value}", sweep.train, changed)
    for name, changed in sweep.settings.attack.items():
        _check("settings.attack", name, attacks.ROWS)
        _attack("settings.attack", name, changed, known)
    for name in sweep.attack.but:
        _check("attack.but", name, attacks.ROWS)
    for grid in sweep.grid:
        for value in grid.corruption:
            name, changed = variants.parse(value)
            if changed:
                corruptions.check(name, changed)
        for value in grid.attack:
            name, changed = variants.parse(value)
            if changed:
                _attack("grid.attack", name, changed, known)


def _attack(where: str, name: str, changed: Mapping[str, Any], known: Mapping[str, Sequence[Any]]) -> None:
    attacks.check(name, changed)
    for place in attacks.places(name, changed):
        _check(f"{where}.{name}.{attacks.CRAFTED_ON}", place, [attacks.SOURCE, attacks.DEPLOYED, *known["framework"]], "framework")


def _frameworks(sweep: "Sweep", known: Mapping[str, Sequence[Any]]) -> None:
    """Those that are named outside the grid."""
    named = {
        "transplant_via": sweep.transplant_via, "trace.against": sweep.trace.against, "same_weights_from": sweep.same_weights_from,
    }
    for key, framework in named.items():
        if framework is not None:
            _check(key, framework, known["framework"], "framework")
    if sweep.trace.steps and sweep.trace.against is None:
        raise ValueError("trace.against: steps are compared with those of a framework, which must be named")
    if sweep.trace.steps and not any("identical" in grid.recipe and "trained" in grid.weights for grid in sweep.grid):
        raise ValueError("trace.steps: steps are compared where networks start equal, and no grid trains by the recipe 'identical'")
    if sweep.same_weights_from is None and any("same" in grid.weights for grid in sweep.grid):
        raise ValueError("same_weights_from: weights 'same' needs the framework whose trained model the others take over")


def _check(where: str, value: Any, valid: Iterable[Any], axis: str = "") -> None:
    if axis in VARIED:
        try:
            value = variants.parse(value).base
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    if value not in valid and not (axis in _OPEN and _OPEN[axis](str(value))):
        raise ValueError(f"{where}: there is no {value!r}{nearest(value, valid)}")


_OPEN: dict[str, Callable[[str], Any]] = {
    "framework": lambda value: value == NOTHING or toolchain.offer("frameworks", value),
    "dataset": lambda value: value == NOTHING or OWN_INPUTS.fullmatch(value),
    "architecture": lambda value: value == NOTHING or CUSTOM.fullmatch(value),
    "operator": lambda value: value == NOTHING,
    "runtime": lambda value: toolchain.offer("runtimes", value),
}
"""Axes with values that no list has: a user's own function or file, a version of what the default toolchain has, or nothing."""


def _partial_training(where: str, base: "Training", changed: Mapping[str, Any]) -> None:
    for key in changed:
        _check(where, key, type(base).model_fields)
    try:
        type(base).model_validate(base.model_dump() | dict(changed))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{where}.{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r}") from None
