"""Smaller probes: which values of the parameters are simpler than those of a probe."""

from collections.abc import Iterable, Mapping
from typing import Any

from sweep.operators import _probe as probing
from sweep.probing.draw import Space


def complexity(probe: Mapping[str, Any], space: Space) -> tuple[int, int]:
    """Probes are compared by how far their values are from the simplest, then by how many numbers they read."""
    size = 1
    for extent in probing.input_shape(probe):
        size *= extent
    return sum(space.values[name].index(value) for name, value in probe["parameters"].items()), size


def simpler(probe: Mapping[str, Any], space: Space) -> list[dict[str, Any]]:
    """The probes that differ from this one in one parameter, whose value is simpler."""
    found = []
    for name, value in probe["parameters"].items():
        for other in space.values[name][: space.values[name].index(value)]:
            parameters = dict(probe["parameters"], **{name: other})
            if space.has(parameters):
                found.append({**probe, "parameters": parameters})
    return found


def simplest(probes: Iterable[Mapping[str, Any]], space: Space) -> Mapping[str, Any]:
    return min(probes, key=lambda probe: complexity(probe, space))
