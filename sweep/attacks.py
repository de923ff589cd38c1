"""Attacks are rows of a table: ART's class, what it needs of a model, the threat model and the settings.

    check(name, overrides)              is this valid, before any work
    resolve(name, dataset, overrides)   every setting of a cell's attack, as JSON
    craft(name, settings, ...)          the adversarial inputs

ART is imported by `craft` alone, so that whoever plans a sweep can read the table without it.
"""

import difflib
import importlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

DISTRIBUTION = "adversarial-robustness-toolbox"
"""The package that crafts; its version is part of what an attack is."""

ROUNDING = 1e-5
"""By how much a perturbation may exceed eps through float32 arithmetic, relative and absolute."""


class Rule(Protocol):
    """What a setting may be. Its text completes the sentence "must be ..."."""

    def parse(self, value: Any) -> Any:
        """The value in its one JSON form. Raises ValueError."""


@dataclass(frozen=True)
class Distance:
    """A distance between images in [0, 1] units, under the threat model's norm."""

    def parse(self, value: Any) -> float:
        if isinstance(value, str):
            try:
                value = float(Fraction(value))
            except (ValueError, ZeroDivisionError, OverflowError):
                raise ValueError(value) from None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(value)
        return float(value)

    def __str__(self) -> str:
        return "a number above 0, such as 0.03 or 8/255"


@dataclass(frozen=True)
class Integer:
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int

    def parse(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise ValueError(value)
        return int(value)

    def __str__(self) -> str:
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple[Any, ...]

    def parse(self, value: Any) -> Any:
        for choice in self.values:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
        raise ValueError(value)

    def __str__(self) -> str:
        return " or ".join(repr(value) for value in self.values)


@dataclass(frozen=True)
class Attack:
    """One attack. `norm` and eps are its threat model; `defaults` hold under that norm."""

    name: str
    art_class: str  # "module:class"
    needs: frozenset[str]  # of `loss_gradient`, `class_gradient`, `scores`, `labels`
    norm: str | int
    rules: Mapping[str, Rule]  # every setting there is
    defaults: Mapping[str, Any]
    by_dataset: Mapping[str, Mapping[str, Any]]  # what replaces a default on a data set
    constants: Mapping[str, Any]  # further arguments of ART's class that nobody chooses


_DISTANCES = ("eps", "eps_step")
_LARGEST_LINF = 1.0  # opposite corners of the image cube
_RULES: dict[str, Rule] = {
    "norm": Choice(("inf", 2)),
    "eps": Distance(),
    "eps_step": Distance(),
    "max_iter": Integer(1, 10_000),
    "num_random_init": Integer(0, 1_000),
    "targeted": Choice((False,)),  # the labels given to an attack are the true ones
    "seed": Integer(0, 2**32 - 1),  # what NumPy's global generator takes
    "batch_size": Integer(1, 100_000),
}
_OTHER_DATASETS = {"eps": 8 / 255, "eps_step": 2 / 255, "max_iter": 20}
_BY_DATASET = {
    # Madry et al. 2018, section 5: 40 steps of 0.01 within 0.3 on digits
    "mnist": {"eps": 0.3, "eps_step": 0.01, "max_iter": 40},
    "fashion_mnist": {"eps": 0.3, "eps_step": 0.01, "max_iter": 40},
    # the same, on small colour images: steps of 2/255 within 8/255
    "cifar10": {"eps": 8 / 255, "eps_step": 2 / 255, "max_iter": 20},
}


def _attack(
    name: str, art_class: str, needs: set[str], settings: tuple[str, ...], defaults: dict[str, Any], constants: dict[str, Any]
) -> Attack:
    defaults = {"norm": "inf", "targeted": False, "seed": 0, "batch_size": 128, **_OTHER_DATASETS, **defaults}
    return Attack(
        name=name,
        art_class=art_class,
        needs=frozenset(needs),
        norm=defaults["norm"],
        rules={key: _RULES[key] for key in settings},
        defaults={key: defaults[key] for key in settings},
        by_dataset={name: {key: ball[key] for key in ball if key in settings} for name, ball in _BY_DATASET.items()},
        constants=constants,
    )


_ALL = (
    # Goodfellow et al. 2015: one step of eps along the sign of the gradient
    _attack(
        "fgsm",
        "art.attacks.evasion:FastGradientMethod",
        {"loss_gradient", "labels"},
        ("norm", "eps", "num_random_init", "targeted", "seed", "batch_size"),
        {"num_random_init": 0},
        {"minimal": False},
    ),
    # Madry et al. 2018: projected steps from a random point of the ball
    _attack(
        "pgd",
        "art.attacks.evasion:ProjectedGradientDescent",
        {"loss_gradient", "labels"},
        ("norm", "eps", "eps_step", "max_iter", "num_random_init", "targeted", "seed", "batch_size"),
        {"num_random_init": 1},
        {"verbose": False},
    ),
)
ROWS = {attack.name: attack for attack in _ALL}


def check(name: str, settings: Mapping[str, Any]) -> None:
    """Whether these overrides are valid for an attack. Raises ValueError that names the key, the value and what would be valid."""
    _parse(name, settings)


def resolve(name: str, dataset: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of an attack on a data set, as JSON: the overrides, else the data set's own values, else the defaults.

    Distances come back as floats, also those given as "8/255". Raises ValueError as `check` does, and where eps_step exceeds eps.
    """
    given = _parse(name, overrides)
    row = ROWS[name]
    settings = {**row.defaults, **row.by_dataset.get(dataset, {}), **given}
    if settings.get("eps_step", 0) > settings.get("eps", math.inf):
        raise ValueError(
            f"attack {name} on {dataset}: eps_step {settings['eps_step']:g} exceeds eps {settings['eps']:g}; set eps_step too"
        )
    return settings


def craft(name: str, settings: Mapping[str, Any], estimator: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Adversarial inputs, float32 like x: (N, H, W, C) in [0, 1] and at most eps from it.

    `settings` come from `resolve`, `estimator` from `sweep.estimator`, `y` is the true labels, int64 (N,). Equal arguments give equal
    results, and NumPy's global generator, from which ART draws, is left as it was. Raises RuntimeError where the result breaks the threat
    model, ART's EstimatorError where the estimator lacks what the attack needs.
    """
    row = ROWS[name]
    module, _, class_name = row.art_class.partition(":")
    arguments = {key: value for key, value in settings.items() if key != "seed"}
    if arguments["norm"] == "inf":
        arguments["norm"] = np.inf
    attack = getattr(importlib.import_module(module), class_name)(estimator, **arguments, **row.constants)
    with _seeded(settings["seed"]):
        adversarial = np.asarray(attack.generate(x=np.asarray(x, np.float32), y=y), dtype=np.float32)
    _check_threat_model(name, settings, x, adversarial)
    return adversarial


def _parse(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    if name not in ROWS:
        raise ValueError(f"there is no attack {name!r}{_nearest(name, ROWS)}")
    row, parsed = ROWS[name], {}
    for key, value in settings.items():
        if key not in row.rules:
            raise ValueError(f"attack {name}: there is no setting {key!r} (given {value!r}){_nearest(key, row.rules)}")
        try:
            parsed[key] = row.rules[key].parse(value)
        except ValueError:
            raise ValueError(f"attack {name}: {key} is {value!r}, but must be {row.rules[key]}") from None
    norm = parsed.get("norm", row.norm)
    for key in _DISTANCES:
        if norm == "inf" and parsed.get(key, 0) > _LARGEST_LINF:
            raise ValueError(f"attack {name}: {key} is {settings[key]!r}, but must be at most {_LARGEST_LINF:g} under norm 'inf'")
        if norm != row.norm and key in row.rules and key not in parsed:
            raise ValueError(f"attack {name}: norm is {norm!r}, so {key} must be set too: its default holds for norm {row.norm!r}")
    return parsed


def _nearest(word: object, valid: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(str(word), valid, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(valid)}"


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    before = np.random.get_state()  # the global generator is the one that ART draws from
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def _check_threat_model(name: str, settings: Mapping[str, Any], x: np.ndarray, adversarial: np.ndarray) -> None:
    if adversarial.shape != x.shape or not np.all((adversarial >= 0) & (adversarial <= 1)):
        raise RuntimeError(f"attack {name} left the images' shape or their range [0, 1]")
    order = np.inf if settings["norm"] == "inf" else settings["norm"]
    moved = np.linalg.norm((adversarial.astype(np.float64) - x).reshape(len(x), -1), ord=order, axis=1)
    if moved.max() > settings["eps"] * (1 + ROUNDING) + ROUNDING:
        raise RuntimeError(f"attack {name} moved an image by {moved.max():g}, more than eps {settings['eps']:g} in norm {settings['norm']}")
