"""From the rows of a sweep to groups of seeds, and to what may be said of two frameworks. Pure.

A *group* is all rows that differ in the seed alone; a row's training is its replicate, so rows that rest on one training count once. A
*family* is the groups of one experiment that differ in the framework alone: all its pairs are tested together. Only models that frameworks
trained and serve themselves are compared: a converted one, or one with another's weights, is compared with what it was made from.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from sweep import variants
from sweep.axes import FLOAT64, NATIVE, NO_ATTACK, NO_CONTROL, ONE_ULP
from sweep.plan import carried_over, kind_of_access
from sweep.records import OK, CellRecord
from sweep.statistics import (
    ALPHA,
    CLAIM_SEEDS,
    TEST_SEEDS,
    Comparison,
    Estimate,
    beyond_control,
    compare,
    control_difference,
    estimate,
    holm,
    smallest_p,
)

METRICS = ("accuracy", "robust_accuracy", "attack_success_rate")
PAIRED_RECIPE = "identical"
"""Equal initial weights and equal batches for a seed, in every framework."""

_FRAMEWORK_S_OWN = ("framework", "framework_version", "runtime_version")
"""What differs between the frameworks of a family; everything else is equal."""


@dataclass(frozen=True)
class Group:
    """One metric of rows that differ in the seed alone."""

    metric: str
    params: Mapping[str, str]  # of the rows, without the seed, and without the attack where the metric is of none
    values: Mapping[int, float]  # by seed
    rows: Sequence[CellRecord]

    @property
    def framework(self) -> str:
        return self.params["framework"]

    @property
    def control(self) -> str:
        return self.params["control"]

    @property
    def family(self) -> tuple[tuple[str, str], ...]:
        """What the groups of a family share; its controls are of it too."""
        shared = {name: value for name, value in self.params.items() if name not in (*_FRAMEWORK_S_OWN, "control")}
        return ("metric", self.metric), *shared.items()

    @property
    def estimate(self) -> Estimate:
        return estimate([self.values[seed] for seed in sorted(self.values)])


class Controls(NamedTuple):
    """What the controls say of a pair; None where they are missing, or too few for a claim."""

    one_ulp: tuple[float | None, float | None]  # mean |difference| of a training from its twin that one ulp moved, on either side
    beyond_control: bool | None
    in_float64: bool | None


class Pair(NamedTuple):
    """Two frameworks of a family."""

    first: Group
    second: Group
    comparison: Comparison | None  # None where no seed is common to both
    pairs: int  # tested together
    p_holm: float | None
    controls: Controls
    verdict: str


def groups(rows: Sequence[CellRecord], metric: str) -> list[Group]:
    """The groups of a metric, in the order of their first rows. Only rows that are ok and have the metric."""
    found: dict[tuple[tuple[str, str], ...], list[CellRecord]] = {}
    for row in rows:
        if row.tags["status"] == OK and metric in row.metrics:
            found.setdefault(tuple(_identity(row, metric).items()), []).append(row)
    return [Group(metric, dict(identity), _by_seed(members, metric), members) for identity, members in found.items()]


def pairs(found: Sequence[Group]) -> list[Pair]:
    """All pairs of frameworks, family by family."""
    families: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for group in found:
        if frameworks_own(group):
            families.setdefault(group.family, []).append(group)
    return [pair for members in families.values() for pair in _pairs(members)]


def frameworks_own(group: Group) -> bool:
    """Whether a group is of models that their framework trained and serves itself, and that were attacked there."""
    params = group.params
    return params["weights"] == "trained" and params.get("route") == NATIVE and not carried_over(params.get("access", ""))


def compared(first: Group, second: Group) -> Comparison | None:
    """Two groups of one family, by the rule of its recipe; None where seeds are paired and none is common."""
    paired = first.params["recipe"] == PAIRED_RECIPE
    if paired and not first.values.keys() & second.values.keys():
        return None
    return compare(first.values, second.values, paired)


def seeds_of(n: int) -> str:
    """So many seeds, in words."""
    return f"{n} seed{'' if n == 1 else 's'}"


class _Tested(NamedTuple):
    first: Group
    second: Group
    comparison: Comparison | None
    together: int  # pairs that were tested together
    p_holm: float | None

    @property
    def undecidable(self) -> bool:
        """Whether no values whatever could be told apart in so large a family."""
        assert self.comparison is not None, "there are seeds"
        n, paired = self.comparison.n, self.comparison.paired
        n_first, n_second = (n, n) if paired else (len(self.first.values), len(self.second.values))
        return smallest_p(n_first, n_second, paired) * self.together >= ALPHA


def _pairs(family: Sequence[Group]) -> list[Pair]:
    in_float64 = _claimed([group for group in family if group.control == FLOAT64])
    moved = {_name(group): group.values for group in family if group.control == ONE_ULP}
    made = []
    for tested in _tests([group for group in family if group.control == NO_CONTROL]):
        first, second, comparison, together, p_holm = tested
        controls = Controls((None, None), None, None)
        if comparison is not None:
            one_ulp = [control_difference(group.values, moved.get(_name(group), {})) for group in (first, second)]
            sign = in_float64.get((_name(first), _name(second)))
            stands = None if sign is None else sign * comparison.difference > 0
            controls = Controls((one_ulp[0], one_ulp[1]), beyond_control(comparison.difference, one_ulp), stands)
        made.append(Pair(first, second, comparison, together, p_holm, controls, _verdict(tested, controls)))
    return made


def _tests(family: Sequence[Group]) -> list[_Tested]:
    found = [(first, second, compared(first, second)) for first, second in itertools.combinations(family, 2)]
    adjusted = holm([comparison and comparison.p for _first, _second, comparison in found])
    together = sum(p is not None for p in adjusted)
    return [_Tested(*each, together, p) for each, p in zip(found, adjusted, strict=True)]


def _claimed(family: Sequence[Group]) -> dict[tuple[tuple[str, str], tuple[str, str]], int]:
    """The sign of each pair's claimed difference, either way round; 0 where none is shown, and nothing where seeds are too few."""
    found = {}
    for tested in _tests(family):
        comparison, p = tested.comparison, tested.p_holm
        if comparison is None or p is None or comparison.n < CLAIM_SEEDS or tested.undecidable:
            continue
        sign = 0 if p >= ALPHA else 1 if comparison.difference > 0 else -1
        found[_name(tested.first), _name(tested.second)] = sign
        found[_name(tested.second), _name(tested.first)] = -sign
    return found


def _verdict(tested: _Tested, controls: Controls) -> str:
    comparison, p = tested.comparison, tested.p_holm
    if comparison is None:
        return "no seed in common"
    if comparison.n < CLAIM_SEEDS or p is None:
        return f"{seeds_of(comparison.n)}, no claim below {CLAIM_SEEDS}" + ("; the interval alone" if comparison.n < TEST_SEEDS else "")
    if tested.undecidable:
        return f"{comparison.n} seeds can't decide among {tested.together} pairs"
    if p >= ALPHA:
        return "no difference shown"
    higher, lower = (tested.first, tested.second) if comparison.difference > 0 else (tested.second, tested.first)
    said = f"{higher.framework} is higher than {lower.framework}"
    if controls.beyond_control is None:
        return f"{said}; not known whether beyond one ulp: a control is missing"
    if not controls.beyond_control:
        return f"{said}, by no more than one ulp in the initial weights does: no claim"
    if controls.in_float64 is None:
        return f"{said}, beyond one ulp; not known whether in float64"
    return f"{said}, beyond one ulp, " + ("in float64 too: not rounding" if controls.in_float64 else "but not shown in float64")


def _name(group: Group) -> tuple[str, str]:
    return group.framework, group.params["framework_version"]


def _identity(row: CellRecord, metric: str) -> dict[str, str]:
    """What a row shares with its group."""
    of_an_attack = metric in ("robust_accuracy", "attack_success_rate")
    found = {"control": NO_CONTROL} | {name: str(value) for name, value in row.params.items() if name not in ("seed", "attack_seed")}
    if not of_an_attack:
        found = {name: value for name, value in found.items() if name != "attack" and not name.startswith("attack_")}
    elif found["attack"] != NO_ATTACK:
        found |= {"attack": variants.without(found["attack"], "seed"), "access": kind_of_access(row.tags.get("access", ""))}
    return dict(sorted(found.items()))


def _by_seed(rows: Sequence[CellRecord], metric: str) -> dict[int, float]:
    """One value per training, the mean of an attack's repeats on it. The first of a row's stages is the training that all rest on."""
    of_training: dict[str, dict[str, float]] = {}
    seeds: dict[str, int] = {}
    for row in rows:
        seeds[row.stages[0]] = int(row.params["seed"])
        of_training.setdefault(row.stages[0], {}).setdefault(str(row.params.get("attack_seed")), row.metrics[metric])
    return {seeds[training]: fmean(values.values()) for training, values in of_training.items()}
