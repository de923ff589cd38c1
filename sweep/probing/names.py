"""What is wrong with an output: the known ways to get an operator wrong that give exactly what was observed."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sweep.operators import _faults
from sweep.operators import _probe as probing
from sweep.probing.judge import Arrays, judge, tolerance

OWN_ROUNDING = 16 * 2.0**-23
"""Relative: a wrong value may be larger than the right one, and is rounded then by more than the right one may be off."""
EXPLAINED = 4
"""So many times nearer to what was observed than the right output is has to be what explains it: tolerances of integers are wide."""
INEXACT, CLOSE = 16, 2.0**-8
"""Off by up to so many times what is tolerated is a matter of accuracy, where that is below such a part of the largest value."""
COARSER = ("float16", "bfloat16")
SHAPE, NOT_FINITE, ACCURACY, UNKNOWN = "shape", "not_finite", "accuracy", "unknown"


class Named(NamedTuple):
    """A fault: its kind, in words what would give the observed output, and what other kinds would give it too."""

    fault: str
    detail: str
    also: list[str]


def name(probe: Mapping[str, Any], arrays: tuple[Arrays, np.ndarray], observed: np.ndarray, allowed: np.ndarray, row: str) -> Named:
    """The name of a wrong output; `arrays` and `allowed` as in `sweep.probing.judge`."""
    weights, inputs = probing.wide(arrays[0]), arrays[1].astype(np.float64)
    right = probing.exact(probe, *arrays)
    found: dict[str, str] = {}
    with np.errstate(all="ignore"):
        for fault, detail, compute in _candidates(probe, weights, inputs, observed.astype(np.float64)):
            if fault not in found and _agrees(compute, right, observed, allowed, row):
                found[fault] = detail
    if found:
        (fault, detail), *others = found.items()
        return Named(fault, detail, [f"{other}: {text}" for other, text in others])
    if observed.shape != right.shape:
        return Named(SHAPE, f"the shape {observed.shape[1:]} in place of {right.shape[1:]}", [])
    lost = np.isfinite(right) != np.isfinite(observed)
    if lost.any():
        return Named(NOT_FINITE, f"{int(lost.sum())} of {lost.size} values finite where they should not be, or the reverse", [])
    ratio = np.abs(np.where(np.isfinite(right), observed - right, 0.0)) / allowed
    if ratio.max() <= INEXACT and np.nanmax(allowed) <= CLOSE * np.abs(right[np.isfinite(right)]).max(initial=0.0):
        return Named(ACCURACY, f"off by up to {ratio.max():.1f} times what rounding explains: {_where(ratio > 1)}", [])
    for coarser in COARSER if row == "float32" else ():
        if judge(observed, right, tolerance(probe, coarser, {}, arrays), coarser).right:
            return Named("reduced_precision", f"off no further than arithmetic in {coarser} goes", [])
    return Named(UNKNOWN, _where(ratio > 1), [])


def _candidates(probe: Mapping[str, Any], weights: Arrays, inputs: np.ndarray, observed: np.ndarray) -> Iterator[tuple[str, str, Any]]:
    operator, parameters = probing.operator_of(probe), probe["parameters"]
    yield from operator.deviations(parameters, weights, inputs, observed)
    yield from _faults.of_values(inputs, observed, lambda other: operator.reference(parameters, weights, other))


def _agrees(compute: Any, right: np.ndarray, observed: np.ndarray, allowed: np.ndarray, row: str) -> bool:
    try:
        values = compute()
    except (ValueError, IndexError):  # what this way would need is not there
        return False
    if values is None or values.shape != observed.shape:
        return False
    if values.shape != right.shape:
        return judge(observed, values, np.full(values.shape, np.nanmax(allowed, initial=0.0)), row).right
    found = judge(observed, values, allowed + OWN_ROUNDING * np.abs(values), row)
    return found.right and EXPLAINED * found.difference <= judge(observed, right, allowed, row).difference


def _where(wrong: np.ndarray) -> str:
    """How many values are off, and where they lie if that is in few places."""
    parts = [f"{int(wrong.sum())} of {wrong.size} values off"]
    axes = {2: ("column",), 3: ("row", "column"), 4: ("row", "column", "channel")}.get(wrong.ndim, ())
    for axis, called in enumerate(("example", *axes)):
        places = np.flatnonzero(wrong.any(axis=tuple(other for other in range(wrong.ndim) if other != axis)))
        if 0 < len(places) < wrong.shape[axis]:
            parts.append(f"in {called}s {', '.join(map(str, places[:8]))}{', ...' if len(places) > 8 else ''}")
    return ", ".join(parts)
