"""Which probes are asked: every pair of parameter values, and between them what is near the simplest, which many a runtime has alone."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweep import components

Parameters = dict[str, Any]
Values = Mapping[str, Sequence[Any]]
Ways = Sequence[Values]
"""What can be asked for: combinations that are within one of these, which have the values by parameter where they aren't all. An empty
list is for all combinations."""

CANDIDATES = 30
"""Of so many valid draws that hold a pair not yet met, the one that holds most such pairs is taken."""
TRIES = 300
"""A pair that so many draws never make valid is taken for one that no valid combination has."""
SIMPLE = 0.5
REPEATS = 1000
"""After so many draws without a new one, all combinations are taken to have been drawn."""


def probes(operator: str, count: int, seed: int, ways: Ways = ()) -> list[dict[str, Any]]:
    """Up to `count` different probes of an operator, the same for the same arguments; fewer where there are no more.

    By turns one that holds pairs of values of two parameters that none before held, chosen greedily until every pair that some valid
    combination has is met, and random ones after that; and one of which about half of the parameters have their simplest value.
    """
    space = Space(operator, ways)
    drawn = itertools.islice(_distinct(space, random.Random(f"{operator} {seed}")), count)
    return [{"operator": operator, "parameters": parameters, "seed": seed} for parameters in drawn]


class Space:
    """The combinations of an operator that have a meaning and can be asked for."""

    def __init__(self, operator: str, ways: Ways = ()) -> None:
        """Raises ValueError where a way names no parameter, or leaves one without a value."""
        self.operator = components.load("operators", operator)
        everything = {name: list(values) for name, values in self.operator.PARAMETERS.items()}
        self.ways = [_limited(everything, way) for way in ways or [{}]]
        self.values = {
            name: [value for value in values if any(value in way[name] for way in self.ways)] for name, values in everything.items()
        }

    def has(self, parameters: Parameters) -> bool:
        return self.operator.valid(parameters) and any(all(value in way[name] for name, value in parameters.items()) for way in self.ways)

    def drawn(self, chance: random.Random) -> Parameters:
        """A combination, which need not be one that it has."""
        return {name: chance.choice(values) for name, values in self.values.items()}


def within(ways: Ways, values: Values) -> list[dict[str, list[Any]]]:
    """The ways with no more than these values of the parameters that are named."""
    return [
        {name: list(known) for name, known in way.items()}
        | {name: [value for value in way.get(name, known) if value in known] for name, known in values.items()}
        for way in ways or [{}]
    ]


def _limited(everything: Mapping[str, list[Any]], way: Values) -> dict[str, list[Any]]:
    if unknown := sorted(set(way) - set(everything)):
        raise ValueError(f"there is no parameter {unknown[0]!r}; there are {', '.join(everything)}")
    found = {name: [value for value in values if value in way.get(name, values)] for name, values in everything.items()}
    if empty := [name for name, values in found.items() if not values]:
        raise ValueError(f"no value of {empty[0]} is left")
    return found


def pairs_met(parameters: Sequence[Parameters]) -> set[tuple[str, str, str, str]]:
    """The pairs of values that these combinations hold: (parameter, value, parameter, value)."""
    return {pair for each in parameters for pair in _pairs(each)}


def _distinct(space: Space, chance: random.Random) -> Iterator[Parameters]:
    seen: set[str] = set()
    wide = itertools.chain(_pairwise(space, chance), _random(space, chance, 0.0))
    for both in itertools.zip_longest(wide, _random(space, chance, SIMPLE)):
        for parameters in filter(None, both):
            if (text := repr(parameters)) not in seen:
                seen.add(text)
                yield parameters


def _pairwise(space: Space, chance: random.Random) -> Iterator[Parameters]:
    missing = [
        ((one, a), (other, b))
        for one, other in itertools.combinations(space.values, 2) for a in space.values[one] for b in space.values[other]
    ]
    chance.shuffle(missing)
    met: set[tuple[str, str, str, str]] = set()
    for fixed in missing:
        if _pair(*fixed) in met:
            continue
        candidates: list[Parameters] = []
        for _try in range(TRIES):
            if len(candidates) == CANDIDATES:
                break
            drawn = space.drawn(chance) | dict(fixed)
            if space.has(drawn):
                candidates.append(drawn)
        if candidates:
            best = max(candidates, key=lambda drawn: len(set(_pairs(drawn)) - met))
            met.update(_pairs(best))
            yield best


def _random(space: Space, chance: random.Random, simple: float) -> Iterator[Parameters]:
    """Each valid combination once; that share of the parameters has its simplest value, whatever is drawn."""
    idle, seen = 0, set()
    while idle < REPEATS:
        drawn = {name: space.values[name][0] if chance.random() < simple else value for name, value in space.drawn(chance).items()}
        if (text := repr(drawn)) in seen or not space.has(drawn):
            idle += 1
            continue
        seen.add(text)
        idle = 0
        yield drawn


def _pairs(parameters: Parameters) -> Iterator[tuple[str, str, str, str]]:
    items = list(parameters.items())
    return (_pair(one, other) for at, one in enumerate(items) for other in items[at + 1:])


def _pair(one: tuple[str, Any], other: tuple[str, Any]) -> tuple[str, str, str, str]:
    return (one[0], repr(one[1]), other[0], repr(other[1]))
