"""What the options of a component are: its defaults, what the sweep says for it, and what the value of an axis says. Pure."""

from collections.abc import Mapping
from typing import Any

from sweep import quantization, toolchain, variants
from sweep.errors import ConfigError, nearest
from sweep.facts import Component, Facts
from sweep.schema import Sweep

OF_CALIBRATION = {"samples": None, "draw": 0}
"""Options of every calibrated row: how many inputs it sees (None: all of the fixed list), and another draw of them than the fixed one."""


def framework_options(component: Component, sweep: Sweep) -> dict[str, Any]:
    """What the sweep says for a framework."""
    return {name: value for name, value in _said(component, sweep).items() if name in component.facts["options"]}


def serving_options(runtime: Component, sweep: Sweep, variant: Mapping[str, Any]) -> dict[str, Any]:
    """A value for each option of a runtime."""
    options = {name: option["default"] for name, option in runtime.facts["options"].items()}
    return options | {name: value for name, value in _said(runtime, sweep).items() if name in options} | dict(variant)


def conversion_options(runtime: Component, text: str) -> tuple[str, dict[str, Any]]:
    """A quantization's row, and a value for each option that a runtime has for it."""
    row, given = variants.parse(text)
    options = {name: option["default"] for name, option in runtime.facts["quantizations"].get(row, {}).items()}
    return row, options | (OF_CALIBRATION if row in runtime.facts["calibrated"] else {}) | dict(given)


def without(runtime: Component, runtime_settings: Mapping[str, Any], quantization_text: str) -> str | None:
    """Which setting of an axis a runtime does not have, in words; None where it has all."""
    for name, value in runtime_settings.items():
        if reason := _unfit(f"{runtime.name}", name, value, runtime.facts["options"]):
            return reason
    row, given = variants.parse(quantization_text)
    known = dict(runtime.facts["quantizations"].get(row, {}))
    for name, value in given.items():
        if name in OF_CALIBRATION and row in runtime.facts["calibrated"]:
            continue
        if reason := _unfit(f"{runtime.name}'s {row}", name, value, known):
            return reason
    return None


def check(sweep: Sweep, facts: Facts) -> None:
    """Raise ConfigError for a setting that no component of the sweep has: it would be a failure of each stage, or worse, be overlooked."""
    for name in sweep.options:
        components = [kind[name] for kind in (facts.frameworks, facts.runtimes) if name in kind and not kind[name].missing]
        known = {option: facts for component in components for option, facts in component.facts["options"].items()}
        for option, value in sweep.options[name].items() if components else ():
            if option not in known:
                raise ConfigError(f"options.{name}: {_none(option, known)}")
            if isinstance(known[option], Mapping) and (wrong := _wrong(value, known[option])):
                raise ConfigError(f"options.{name}.{option}: {wrong}")
    for grid in sweep.grid:
        runtimes = [facts.runtimes[name] for name in dict.fromkeys(map(variants.base, grid.runtime))]
        usable = [runtime for runtime in runtimes if not runtime.missing]
        for text in grid.runtime:
            name, given = variants.parse(text)
            if not facts.runtimes[name].missing:
                _refuse(f"grid.runtime: {text}", [without(facts.runtimes[name], given, "float32")])
        for text in grid.quantization:
            having = [runtime for runtime in usable if variants.base(text) in runtime.facts["quantizations"]]
            _refuse(f"grid.quantization: {text}", [without(runtime, {}, text) for runtime in having])
            _check_calibration(text)


def _check_calibration(text: str) -> None:
    row, given = variants.parse(text)
    if not quantization.ROWS[row].calibrated:
        return
    for name, least in (("samples", 1), ("draw", 0)):
        value = given.get(name, least)
        if type(value) is not int or value < least:
            raise ConfigError(f"grid.quantization: {text}: {name} is a whole number of at least {least}, not {value!r}")


def _refuse(where: str, reasons: list[str | None]) -> None:
    if reasons and all(reasons):
        raise ConfigError(f"{where}: {reasons[0]}")


def _said(component: Component, sweep: Sweep) -> Mapping[str, Any]:
    return sweep.options.get(component.name, sweep.options.get(toolchain.base(component.name), {}))


def _unfit(owner: str, name: str, value: Any, known: Mapping[str, Any]) -> str | None:
    if name not in known:
        return f"{owner} has no option {name!r}{_hint(name, known)}"
    wrong = _wrong(value, known[name])
    return f"{owner}: {name} {wrong}" if wrong else None


def _wrong(value: Any, option: Mapping[str, Any]) -> str | None:
    if option["values"] and value not in option["values"]:
        return f"can't be {value!r}{nearest(str(value), option['values'])}"
    return None


def _none(option: str, known: Mapping[str, Any]) -> str:
    return f"there is no {option!r}{_hint(option, known)}"


def _hint(option: str, known: Mapping[str, Any]) -> str:
    return nearest(option, sorted(known)) if known else "; it has no options"
