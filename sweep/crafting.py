"""Adversarial inputs by a row of `sweep.attacks`: ART's class on a model behind `sweep.estimator`, held to the threat model."""

import importlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from sweep import ensemble
from sweep.attacks import CRAFTED_ON, NO_TARGET, ROWS, STARTS, Attack

ROUNDING = 1e-5
"""By how much a perturbation may exceed eps through float32 arithmetic, relative and absolute."""
SAME_PIXEL = 0.5 / 255
"""What rounds an image to 8 bits and back moves its pixels by less than that."""


def craft(name: str, settings: Mapping[str, Any], estimator: Any, x: np.ndarray, y: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Adversarial inputs, float32 like x: (N, H, W, C) in [0, 1] and at most eps from it.

    `settings` come from `resolve`, `estimator` from `sweep.estimator`, `y` is the true labels, int64 (N,), `logits` (N, classes) the
    model's on x. An input that the model gets wrong as it is stays as it is: there is nothing to attack. Nor is anything of a minimal
    attack kept that went beyond eps. Of several random starts each takes on what withstood the ones before. Equal arguments give equal
    results, and the global generators, from which ART draws, are left as they were.

    Raises RuntimeError where the result breaks the threat model, ART's EstimatorError where the estimator lacks what the attack needs.
    """
    row, x = ROWS[name], np.asarray(x, np.float32)
    starts = max(1, settings.get(STARTS, 1))
    attack = made(row, settings if starts == 1 else {**settings, STARTS: 1}, estimator)
    aims = y if settings["target"] == NO_TARGET else targets(settings["target"], logits, y)
    left, adversarial = np.flatnonzero(logits.argmax(axis=1) == y), x.copy()
    with _seeded(settings["seed"]):
        for start in range(starts):
            if not len(left):
                break
            found = np.asarray(attack.generate(x=x[left], y=aims[left]), dtype=np.float32)
            adversarial[left] = _within(row, settings, x[left], found)
            if start + 1 < starts:  # ART starts anew for every input, and keeps the start that fooled most of a batch
                left = left[estimator.predict(adversarial[left]).argmax(axis=1) == y[left]]
    _check_threat_model(name, settings, x, adversarial)
    return adversarial


def targets(rule: str, logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The classes (N,) that a targeted attack aims at: the one after the label, or the one that the model finds least likely, the label
    itself left out."""
    classes = logits.shape[1]
    if rule == "next":
        return (y + 1) % classes
    return np.where(np.arange(classes) == y[:, np.newaxis], np.inf, logits).argmin(axis=1)


def made(row: Attack, settings: Mapping[str, Any], estimator: Any) -> Any:
    """ART's attack on an estimator, with the row's arguments."""
    module, _, class_name = row.art_class.partition(":")
    named = {key: row.arguments.get(key, key) for key in settings if key not in ("seed", "target", CRAFTED_ON)}
    arguments = {argument: settings[key] for key, argument in named.items() if argument}
    if arguments.get("norm") == "inf":
        arguments["norm"] = np.inf
    home = ensemble if module == ensemble.__name__ else importlib.import_module(module)
    return getattr(home, class_name)(estimator, **arguments, **row.constants)


def _within(row: Attack, settings: Mapping[str, Any], x: np.ndarray, found: np.ndarray) -> np.ndarray:
    if settings["norm"] == 0:  # ART takes images to whole numbers and back
        same = np.abs(found - x).max(axis=-1, keepdims=True) < SAME_PIXEL
        found = np.where(same, x, found)
    if not row.minimal:
        return found
    found = np.clip(found, 0, 1)
    near = distances(settings["norm"], x, found) <= _most(settings["eps"])
    return np.where(near.reshape(-1, *[1] * (x.ndim - 1)), found, x)


def _most(eps: float) -> float:
    return eps * (1 + ROUNDING) + ROUNDING


def distances(norm: str | int, x: np.ndarray, adversarial: np.ndarray) -> np.ndarray:
    """How far inputs were moved, float64 (N,); under norm 0 how many pixels are others, whatever their channels."""
    moved = np.asarray(adversarial, np.float64) - x
    if norm == 0:
        changed: np.ndarray = moved.any(axis=-1).reshape(len(x), -1).sum(axis=1)
        return changed
    return np.asarray(np.linalg.norm(moved.reshape(len(x), -1), ord=float(norm), axis=1))


class _Drawn(np.random.RandomState):
    """A generator that is seeded by the global one where it is given no seed, and not by the clock."""

    def __init__(self, seed: Any = None) -> None:
        super().__init__(np.random.randint(2**32, dtype=np.uint64) if seed is None else seed)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """ART draws from NumPy's global generator, some attacks from Python's, and some from new ones without a seed."""
    before, other, made = np.random.get_state(), random.getstate(), np.random.RandomState
    np.random.seed(seed)
    random.seed(seed)
    np.random.RandomState = _Drawn  # type: ignore[misc]
    try:
        yield
    finally:
        np.random.RandomState = made  # type: ignore[misc]
        np.random.set_state(before)
        random.setstate(other)


def _check_threat_model(name: str, settings: Mapping[str, Any], x: np.ndarray, adversarial: np.ndarray) -> None:
    if adversarial.shape != x.shape or not np.all((adversarial >= 0) & (adversarial <= 1)):
        raise RuntimeError(f"attack {name} left the images' shape or their range [0, 1]")
    most = distances(settings["norm"], x, adversarial).max()
    if most > _most(settings["eps"]):
        raise RuntimeError(f"attack {name} moved an image by {most:g}, more than eps {settings['eps']:g} in norm {settings['norm']}")
