"""The verdict on one output: right, but for what rounding explains, or wrong.

How much rounding explains follows from the operator's definition and from the types that the quantization row computes in. Of each output
element it is the sum of

    rounding        n u / (1 - n u) times the magnitude, for n roundings of single precision (`sweep.operators`; Higham 2002, section 3.1).
                    In half precision sums may be made in it too: 4 sqrt(n) u of that, which they stay below but for bad luck (Higham and
                    Mary 2019); no hardware sums in bfloat16, but it rounds results to it, `steps` of them
    storage         what moving every weight and input by half a step of its type up or down does: the largest effect of some draws,
                    thrice, since draws don't find the worst case
    steps           of a fully quantized graph: `steps` times the step of its output's range
    slack           what the rounding of coordinates may do

and never less than the least normal number, since tiny results may be flushed to 0. What isn't finite has to be so exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweep import quantization
from sweep.operators import _probe as probing

Arrays = Mapping[str, np.ndarray]

DRAWS, STORAGE_FACTOR, LUCK = 8, 3, 4
_FLOAT_BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
_LARGEST = {"float32": float(np.finfo(np.float32).max), "float16": 65504.0, "bfloat16": float(np.finfo(np.float32).max)}


@dataclass(frozen=True)
class Judgement:
    """Of one output: whether it is right, its largest difference from the right one, that in units of what is tolerated, and why not."""

    right: bool
    difference: float
    ratio: float
    why: str = ""


def values_of(row: str) -> dict[str, list[str]]:
    """The numbers that a row is probed with: inputs that its types can't hold say nothing about an operator."""
    return {} if row == "float32" else {"values": ["integers", "drawn", "negative"]}


def tolerance(probe: Mapping[str, Any], row: str, options: Mapping[str, Any], arrays: tuple[Arrays, np.ndarray]) -> np.ndarray:
    """What may be off in each element of the output: float64, shaped like it."""
    operator, parameters = probing.operator_of(probe), probe["parameters"]
    weights, inputs = probing.wide(arrays[0]), arrays[1].astype(np.float64)
    types = _types(row, options)
    with np.errstate(all="ignore"):
        right = operator.reference(parameters, weights, inputs)
        sizes = operator.magnitude(parameters, weights, inputs)
        steps = operator.steps(parameters) if hasattr(operator, "steps") else 1
        count, unit = operator.roundings(parameters), 2.0 ** -_FLOAT_BITS[types.arithmetic]
        single = count * 2.0**-24
        allowed = single / (1 - single) * sizes + unit * np.abs(right)
        if types.arithmetic == "float16":
            allowed = allowed + LUCK * np.sqrt(count) * unit * sizes
        elif types.arithmetic == "bfloat16":
            allowed = allowed + steps * unit * sizes
        allowed = allowed + STORAGE_FACTOR * _storage(operator, parameters, weights, inputs, right, types)
        if types.static_bits:
            span = operator.span(parameters, weights, inputs) if hasattr(operator, "span") else (0.0, 0.0)
            widths = 2 if types.static_bits == 16 else 1  # kernels of functions take 16 bits in steps of a power of two alone
            allowed = allowed + widths * steps * _step(_wider(span, right), types.static_bits)
        if hasattr(operator, "slack"):
            allowed = allowed + operator.slack(parameters, weights, inputs)
    return np.maximum(allowed, np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class _Types:
    weights: str
    activations: str
    arithmetic: str
    static_bits: int  # of every tensor, 0 where only weights and inputs are integers


def _types(row: str, options: Mapping[str, Any]) -> _Types:
    chosen = quantization.ROWS[row]
    weights = f"uint{options['bits']}" if "bits" in options else chosen.weights
    activations = "float16" if row == "float16" else chosen.activations
    arithmetic = activations if activations in _FLOAT_BITS else "float32"
    return _Types(weights, activations, arithmetic, _bits(activations) if chosen.kind == "static" else 0)


def _bits(kind: str) -> int:
    return int(kind.lstrip("uint"))


def _storage(operator: Any, parameters: Any, weights: Arrays, inputs: np.ndarray, right: np.ndarray, types: _Types) -> np.ndarray | float:
    """The largest effect of moving weights and inputs by half a step up or down, over the whole output."""
    if types.weights == types.activations == "float32":
        return 0.0
    chance, most = np.random.default_rng(0), 0.0

    def moved(array: np.ndarray, kind: str) -> np.ndarray:
        return array + chance.choice([-0.5, 0.5], array.shape) * _steps(array, kind)

    for _draw in range(DRAWS):
        others = {name: moved(array, _kept(array, types)) for name, array in weights.items()}
        effect = np.abs(operator.reference(parameters, others, moved(inputs, types.activations)) - right)
        most = max(most, float(effect[np.isfinite(effect)].max(initial=0.0)))
    return most


def _kept(array: np.ndarray, types: _Types) -> str:
    """The type of a weight: where activations are integers, biases and the like are kept as well as these are."""
    return types.weights if array.ndim > 1 or types.activations == "float32" else types.activations


def _steps(array: np.ndarray, kind: str) -> np.ndarray | float:
    """The distance of neighbouring numbers of a type around each element."""
    if kind in _FLOAT_BITS:
        return np.abs(array) * 2.0 ** (1 - _FLOAT_BITS[kind])
    return _step((float(array.min(initial=0.0)), float(array.max(initial=0.0))), _bits(kind), signed=not kind.startswith("u"))


def _step(span: tuple[float, float], bits: int, signed: bool = True) -> float:
    """Of a range that holds 0, in equal steps; signed types are taken to be symmetric, whose steps are the wider ones."""
    low, high = span
    return 2 * max(-low, high) / (2**bits - 2) if signed else (high - low) / (2**bits - 1)


def _wider(span: tuple[float, float], right: np.ndarray) -> tuple[float, float]:
    finite = right[np.isfinite(right)]
    return min(span[0], float(finite.min(initial=0.0))), max(span[1], float(finite.max(initial=0.0)))


def judge(observed: np.ndarray, right: np.ndarray, allowed: np.ndarray, row: str) -> Judgement:
    """`right` is float64. Numbers that the row's arithmetic can't hold may come as infinite, and those that are near may do either."""
    if observed.shape != right.shape:
        return Judgement(False, np.inf, np.inf, f"gives {observed.shape[1:]} and should give {right.shape[1:]} for an example")
    largest = _LARGEST[_types(row, {}).arithmetic]
    with np.errstate(all="ignore"):
        beyond = np.abs(right) + allowed > largest
        special = ~np.isfinite(right) | beyond
        as_it_should = np.where(np.isnan(right), np.isnan(observed), (observed == np.sign(right) * np.inf) | (observed == right))
        near = np.isfinite(observed) & (np.abs(observed) >= largest * (1 - 2.0**-20)) & (np.sign(observed) == np.sign(right))
        as_it_should |= beyond & np.isfinite(right) & (near | (np.abs(observed - right) <= allowed))
        difference = np.where(special, np.where(as_it_should, 0.0, np.inf), np.abs(observed - right))
        difference = np.where(np.isnan(difference), np.inf, difference)
        ratio = np.where(np.isfinite(difference), np.where(difference > 0, difference / allowed, 0.0), np.inf)
    if not right.size:
        return Judgement(True, 0.0, 0.0)
    most, worst = float(difference.max()), float(ratio.max())
    return Judgement(worst <= 1, most, worst, "" if worst <= 1 else _where(ratio > 1))


def decides(right: np.ndarray, allowed: np.ndarray, row: str) -> bool:
    """Whether a wrong output could be told: under coarse steps an output of nothing but zeros may be within what is tolerated of one that
    isn't, and then a right verdict says nothing."""
    return not right.any() or not judge(np.zeros_like(right), right, allowed, row).right


def _where(wrong: np.ndarray) -> str:
    return f"{int(wrong.sum())} of {wrong.size} values are off"
