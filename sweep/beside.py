"""Our rows beside a paper's numbers: one line for each number and each of our groups that it is of, with one of four verdicts. Pure.

A number of the paper is one run, or the best of several. It is compared with what our seeds expect of such a run: their mean, and where the
paper kept the best of several as many of our standard deviations above it as the best of so many normal runs lies. The tolerance is the
root of the sum of two squared half-widths (95 %): that of our seeds' prediction interval for one more run, and that of the binomial
interval of the paper's share of its test images.

A claim is a range, and its tolerance our interval's half-width plus ROUNDING. Rows that are labelled SMOKE stand beside no paper.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from sweep import variants
from sweep.axes import NO_CONTROL, NO_CORRUPTION
from sweep.claims import Group, frameworks_own, groups, seeds_of
from sweep.paper import Claim, Number, Paper, Setup, Table, numbers
from sweep.records import CellRecord
from sweep.statistics import CLAIM_SEEDS, Interval, estimate, expected_best, range_interval, share_interval

SMOKE = "smoke"
REPRODUCED, DIFFERS, NOT_COMPARABLE, NOT_RUN = "reproduced", "differs", "not comparable", "not run"
POINTS = 100.0
ROUNDING = 0.01
"""A difference of two numbers that are printed to 0.01 is known to this, in points."""


class Beside(NamedTuple):
    """One number or claim of the paper and what we have of it. Figures are in the paper's unit."""

    id: str  # of the table or the claim
    source: str  # where it stands in the paper
    read: str
    number: str
    paper: str
    unit: str
    ours_of: str  # framework, version and recipe of our group, "" where there is none
    n: int
    ours: float | None
    tolerance: float | None
    verdict: str  # one of the four
    why: str  # why not comparable; a note else

    @property
    def said(self) -> str:
        return f"{self.verdict} ({self.why})" if self.verdict == NOT_COMPARABLE else self.verdict


class _Judged(NamedTuple):
    ours: float | None
    tolerance: float | None
    verdict: str
    why: str


def is_smoke(row: CellRecord) -> bool:
    return row.params.get("label") == SMOKE


def beside(paper: Paper, rows: Sequence[CellRecord]) -> list[Beside]:
    """Everything in the paper's order: its numbers, what we have of a table beyond them, its claims."""
    kept, smoke = [row for row in rows if not is_smoke(row)], [row for row in rows if is_smoke(row)]
    found: list[Beside] = []
    for table in paper.tables:
        ours, tried = groups(kept, table.metric), groups(smoke, table.metric)
        seen: set[int] = set()
        for number in numbers(table):
            matching = [group for group in ours if _is_of(group, number, paper)]
            seen.update(id(group) for group in matching)
            found += [_line(number, group, _number(number, group, paper)) for group in matching]
            if not matching:
                note = "smoke alone" if any(_is_of(group, number, paper) for group in tried) else ""
                found.append(_line(number, None, _Judged(None, None, NOT_RUN, note)))
        if "framework" in table.by and table.incomparable is None:
            rest = [group for group in ours if id(group) not in seen and _matches(group, table.where)]
            found += [_beyond(table, group, paper) for group in rest]
    for claim in paper.claims:
        found += _claim(claim, kept, paper)
    return found


def _number(number: Number, group: Group, paper: Paper) -> _Judged:
    table, setup = number.table, paper.setups[number.table.setup]
    seeds = group.estimate
    if isinstance(number.value, str):
        return _Judged(None, None, NOT_COMPARABLE, f"the paper has no number: {number.value}")
    if table.incomparable is not None:
        return _Judged(None, None, NOT_COMPARABLE, table.incomparable)
    ours = seeds.mean * POINTS
    if reason := _other_version(group, setup) or _other_conditions(group, setup, paper):
        return _Judged(ours, None, NOT_COMPARABLE, reason)
    assert table.widest is not None, "the paper is validated"
    if reason := _too_wide(seeds.interval, seeds.n, table.widest):
        return _Judged(ours, None, NOT_COMPARABLE, reason)
    one_more = _half(seeds.interval) * math.sqrt(seeds.n + 1)  # t sd sqrt(1 + 1/n), where the interval of the mean is t sd / sqrt(n)
    tolerance = math.hypot(one_more, _half(share_interval(number.value / POINTS, paper.data[group.params["dataset"]].test)))
    above, note = 0.0, ""
    if setup.best_of > 1 and seeds.sd is not None:
        above = expected_best(setup.best_of) * seeds.sd * POINTS
        note = f"the paper's is the best of {setup.best_of} runs: {above:.2f} above their mean is expected, by our spread"
    return _Judged(ours, tolerance, REPRODUCED if abs(ours + above - number.value) <= tolerance else DIFFERS, note)


def _claim(claim: Claim, rows: Sequence[CellRecord], paper: Paper) -> Iterator[Beside]:
    kinds = {"spread": _spreads, "same_weights_change": _same_weights_changes, "conversion_change": _conversion_changes}
    ran = False
    for number, of, n, value, interval, conditions in kinds[claim.kind](claim, rows):
        ran = True
        reason = next(filter(None, (_other_conditions(group, paper.setups[claim.setup], paper) for group in conditions)), None)
        ours = value * POINTS
        if claim.kind == "spread" and n < CLAIM_SEEDS:
            reason = reason or f"{seeds_of(n)}, no claim below {CLAIM_SEEDS}"
        if reason := reason or _too_wide(interval, n, claim.widest):
            judged = _Judged(ours, None, NOT_COMPARABLE, reason)
        else:
            tolerance = _half(interval) + ROUNDING
            outside = max(claim.low - ours, ours - claim.high, 0.0)
            judged = _Judged(ours, tolerance, REPRODUCED if outside <= tolerance else DIFFERS, "")
        yield _claim_line(claim, number, of, n, judged)
    if not ran:
        yield _claim_line(claim, "", "", 0, _Judged(None, None, NOT_RUN, ""))


_Found = Iterator[tuple[str, str, int, float, Interval | None, Sequence[Group]]]
"""What a claim is of, our frameworks, seeds, value, its interval, and the groups that it comes from."""


def _spreads(claim: Claim, rows: Sequence[CellRecord]) -> _Found:
    """The largest difference between frameworks, by family, of each the one without a version on the axis; the two that are farthest apart
    were not chosen beforehand, which the interval of a range takes into account."""
    fitting = [
        group for group in groups(rows, claim.metric)
        if frameworks_own(group) and group.params["control"] == NO_CONTROL and "@" not in group.framework and _matches(group, claim.where)
    ]
    for _family, members in groupby(sorted(fitting, key=lambda group: group.family), key=lambda group: group.family):
        family = sorted(members, key=lambda group: group.estimate.mean)
        lowest, highest = family[0], family[-1]
        if len(family) > 1:
            of = ", ".join(_ours(group) for group in (highest, lowest))
            n = min(group.estimate.n for group in family)
            interval = range_interval([list(group.values.values()) for group in family])
            spread = highest.estimate.mean - lowest.estimate.mean
            yield _title(highest), f"{len(family)} frameworks, {of}", n, spread, interval, family


def _same_weights_changes(claim: Claim, rows: Sequence[CellRecord]) -> _Found:
    found = [group for group in groups(rows, claim.metric) if group.params["weights"] == "same" and group.control == NO_CONTROL]
    masters = {group.family: group for group in found if group.framework == group.params.get("weights_from")}
    for group in found:
        if group.family in masters and masters[group.family] is not group and _matches(group, claim.where):
            yield from _change(group, masters[group.family].values)


def _conversion_changes(claim: Claim, rows: Sequence[CellRecord]) -> _Found:
    sources = {tuple(group.params.items()): group.values for group in groups(rows, f"source_{claim.metric}")}
    for group in groups(rows, claim.metric):
        of_trained = group.params["weights"] == "trained" and group.control == NO_CONTROL
        if of_trained and _matches(group, claim.where) and tuple(group.params.items()) in sources:
            yield from _change(group, sources[tuple(group.params.items())])


def _change(group: Group, before: Mapping[int, float]) -> _Found:
    seeds = sorted(group.values.keys() & before.keys())
    if seeds:
        found = estimate([group.values[seed] - before[seed] for seed in seeds])
        yield _title(group), _ours(group), found.n, found.mean, found.interval, [group]


def _is_of(group: Group, number: Number, paper: Paper) -> bool:
    return _matches(group, number.where) and paper.architectures.get(group.params["architecture"]) == group.params["dataset"]


def _matches(group: Group, where: Mapping[str, Sequence[str]]) -> bool:
    if "corruption" not in where and group.params.get("corruption", NO_CORRUPTION) != NO_CORRUPTION:
        return False
    return all(_plain(axis, group.params.get(axis, "")) in values for axis, values in where.items())


def _plain(axis: str, value: str) -> str:
    """A framework stands without the version that the axis may carry, an attack without the seed of its repeats."""
    if axis == "attack":
        return variants.without(value, "seed")
    return value.partition("@")[0] if axis in ("framework", "weights_from", "runtime") else value


def _other_version(group: Group, setup: Setup) -> str | None:
    framework, version = _plain("framework", group.framework), group.params["framework_version"].partition("+")[0]
    theirs = setup.frameworks.get(framework)
    if theirs is None:
        return f"the paper has no {framework}"
    return None if version == theirs or version.startswith(f"{theirs}.post") else f"{framework} {version}, the paper has {theirs}"


def _other_conditions(group: Group, setup: Setup, paper: Paper) -> str | None:
    """What of a group's data and training is not the paper's, None where all is as far as printed."""
    params, row = group.params, group.rows[0]
    architecture, dataset = params["architecture"], params["dataset"]
    if paper.architectures.get(architecture) != dataset:
        return f"the paper has no {architecture} on {dataset}"
    source, evaluated = row.tags.get("dataset_source", ""), row.metrics.get("eval_n", 0.0)
    if source in paper.data[dataset].altered:
        return f"{dataset} from {source}: {paper.data[dataset].altered[source]}"
    if evaluated < paper.data[dataset].test:
        return f"evaluated on {evaluated:.0f} of {paper.data[dataset].test} test examples"
    if params["recipe"] not in setup.recipes:
        return f"recipe {params['recipe']}, the paper has {' or '.join(setup.recipes)}"
    if params.get("train_examples", "all") != "all":
        return f"trained on {params['train_examples']} examples"
    for name, theirs in setup.training.get(architecture, {}).items():
        ours = params.get(f"train_{name}")
        if ours is None:
            return f"{name} is not recorded"
        if ours != theirs if isinstance(theirs, str) else float(ours) != theirs:
            return f"{name} {ours}, the paper has {theirs if isinstance(theirs, str) else f'{theirs:g}'}"
    return None


def _too_wide(interval: Interval | None, n: int, widest: float) -> str | None:
    if interval is None:
        return "one seed has no interval"
    half = _half(interval)
    return f"{n} seeds leave ± {half:.2f} points, which says nothing above {widest:g}" if half > widest else None


def _half(interval: Interval | None) -> float:
    assert interval is not None, "checked before"
    return (interval.high - interval.low) / 2 * POINTS


def _beyond(table: Table, group: Group, paper: Paper) -> Beside:
    reason = _other_version(group, paper.setups[table.setup]) or _other_conditions(group, paper.setups[table.setup], paper)
    missing = reason if reason and reason.startswith("the paper has no ") else "the paper has no such number"
    judged = _Judged(group.estimate.mean * POINTS, None, NOT_COMPARABLE, missing)
    return Beside(table.id, table.source, table.read, _title(group), "", table.unit, _ours(group), group.estimate.n, *judged)


def _line(number: Number, group: Group | None, judged: _Judged) -> Beside:
    table, value = number.table, number.value
    paper = value if isinstance(value, str) else f"{value:g}" if table.incomparable else f"{value:.2f}"
    ours_of, n = ("", 0) if group is None else (_ours(group), group.estimate.n)
    return Beside(table.id, table.source, table.read, number.name, paper, table.unit, ours_of, n, *judged)


def _claim_line(claim: Claim, number: str, of: str, n: int, judged: _Judged) -> Beside:
    range_ = f"{claim.low:g}" if claim.low == claim.high else f"{claim.low:g} to {claim.high:g}"
    return Beside(claim.id, claim.source, "claim", f"{number}: {claim.says}" if number else claim.says, range_, "points", of, n, *judged)


def _title(group: Group) -> str:
    return f"{group.params['dataset']} {group.params['architecture']}"


def _ours(group: Group) -> str:
    return f"{group.framework} {group.params['framework_version']} {group.params['recipe']}"
