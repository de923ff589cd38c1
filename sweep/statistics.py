"""What may be claimed of two frameworks, and of two given models. Pure.

A framework claim has training seeds as its replicates: `estimate` of one group, `compare` of two, `holm` over the pairs of one family.
How many seeds a claim needs follows from the smallest p that an exact rank test can give, two-sided (`smallest_p`):

    seeds a side             5              6              7              8
    paired     2 / 2^n       2/32  = 0.0625 2/64  = 0.0313 2/128 = 0.0156 2/256   = 0.0078
    unpaired   2 / C(2n, n)  2/252 = 0.0079 2/924 = 0.0022 2/3432 = 0.0006 2/12870 = 0.0002

Four frameworks make a family of six pairs, and Holm's first step asks for p < 0.05 / 6 = 0.0083. Eight paired seeds are the fewest that can
meet it, so there is no claim below CLAIM_SEEDS. Below TEST_SEEDS no paired test can reject even alone, at 0.05: the interval stands alone.

A difference between frameworks means something only beyond what one ulp in the initial weights does: `control_difference`.

`mcnemar` is for two models over the same inputs. It takes answers of models that come from one training, and refuses all others: two
trainings are one draw of each framework's seeds, and what one pair of models does says nothing of the frameworks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as exact_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

CLAIM_SEEDS = 8
TEST_SEEDS = 6
ALPHA = 0.05
ARRANGEMENTS = 20_000  # of values with ties: all up to this many (14 paired seeds, 8 unpaired a side), as many drawn beyond
DECIMALS = 12  # equal differences of shares must be equal: 0.9883 - 0.9881 and 0.9885 - 0.9883 are not, as doubles


class Interval(NamedTuple):
    low: float
    high: float


class Estimate(NamedTuple):
    """Values of one group: their mean and spread, and the 95 % t interval of the mean. Of one value only the mean is known."""

    n: int
    mean: float
    sd: float | None  # with n - 1
    interval: Interval | None


class Comparison(NamedTuple):
    """One group of seeds less another. `p` is None below TEST_SEEDS, `interval` where a side has one seed."""

    paired: bool
    n: int  # pairs, or the smaller side
    difference: float  # of the means
    interval: Interval | None  # 95 %: t of the pairs' differences, else Welch's
    cliffs_delta: float  # how much more often a value of the first exceeds one of the second than the reverse, -1 to 1
    p: float | None


class McNemar(NamedTuple):
    """Inputs that only one of two models has right, and the exact two-sided p of their split."""

    only_first: int
    only_second: int
    p: float


@dataclass(frozen=True)
class Answers:
    """What one given model answered: which inputs, and whether it was right."""

    training: str  # key of the training that its weights come from
    index: Sequence[int]
    right: Sequence[bool]


def estimate(values: Sequence[float]) -> Estimate:
    """Raises ValueError for no values."""
    if not values:
        raise ValueError("there is no value to estimate from")
    found = np.round(np.asarray(values, dtype=np.float64), DECIMALS)
    if len(found) == 1:
        return Estimate(1, float(found[0]), None, None)
    if np.ptp(found) == 0:
        same = float(found[0])
        return Estimate(len(found), same, 0.0, Interval(same, same))
    low, high = DescrStatsW(found).tconfint_mean(ALPHA)
    return Estimate(len(found), float(found.mean()), float(found.std(ddof=1)), Interval(float(low), float(high)))


def compare(first: Mapping[int, float], second: Mapping[int, float], paired: bool) -> Comparison:
    """Values by seed. Paired: the seeds that both have, by Wilcoxon's signed-rank test; else Mann-Whitney's. Both exact, with ties
    up to ARRANGEMENTS of them.

    Raises ValueError where a side, or what both have in common, is empty.
    """
    seeds = sorted(first.keys() & second.keys()) if paired else []
    a = _values(first, seeds if paired else sorted(first))
    b = _values(second, seeds if paired else sorted(second))
    if not len(a) or not len(b):
        raise ValueError("no seed to compare")
    n = min(len(a), len(b))
    difference = round(float(a.mean() - b.mean()), DECIMALS)
    interval = None if n < 2 else estimate((a - b).tolist()).interval if paired else _welch_interval(a, b)
    signs = np.sign(np.round(a[:, None] - b[None, :], DECIMALS))
    p = None if n < TEST_SEEDS else _signed_rank(a, b) if paired else _rank_sum(a, b)
    return Comparison(paired, n, difference, interval, float(signs.mean()), p)


def smallest_p(n_first: int, n_second: int, paired: bool) -> float:
    """The smallest p that the test of `compare` can give, whatever the values."""
    return min(1.0, 2 / 2 ** min(n_first, n_second) if paired else 2 / math.comb(n_first + n_second, n_first))


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p of the pairs of one family; a pair that was not tested has none, and does not count."""
    tested = [value for value in p if value is not None]
    adjusted = iter(multipletests(tested, method="holm")[1].tolist() if tested else [])
    return [None if value is None else next(adjusted) for value in p]


def control_difference(base: Mapping[int, float], moved: Mapping[int, float]) -> float | None:
    """The mean over the seeds that both have of |moved - base|: what one ulp does to one training. None without such a seed."""
    seeds = base.keys() & moved.keys()
    return float(np.mean([abs(moved[seed] - base[seed]) for seed in seeds])) if seeds else None


def beyond_control(difference: float, controls: Sequence[float | None]) -> bool | None:
    """Whether a difference of means exceeds what one ulp does on either side; None where a side's control is missing and decides."""
    size = round(abs(difference), DECIMALS)
    if any(control is not None and size <= round(control, DECIMALS) for control in controls):
        return False
    return True if controls and None not in controls else None


def share_interval(share: float, n: int) -> Interval:
    """95 % Wilson interval of a share of n inputs."""
    low, high = proportion_confint(round(share * n), n, ALPHA, method="wilson")
    return Interval(float(low), float(high))


def expected_best(runs: int) -> float:
    """How many standard deviations the best of some runs lies above their mean, on average, for normal runs."""
    return float(runs * stats.norm.expect(lambda x: x * stats.norm.cdf(x) ** (runs - 1)))


def range_interval(groups: Sequence[Sequence[float]]) -> Interval | None:
    """95 % interval of the range of several groups' means, by the studentised range (Tukey) with the pooled spread and the smallest group's
    size; None where a group has one value."""
    sizes = [len(values) for values in groups]
    if min(sizes) < 2:
        return None
    degrees = sum(sizes) - len(sizes)
    pooled = math.sqrt(sum(np.var(values, ddof=1) * (len(values) - 1) for values in groups) / degrees)
    means = [float(np.mean(values)) for values in groups]
    half = float(stats.studentized_range.ppf(1 - ALPHA, len(groups), degrees)) * pooled / math.sqrt(min(sizes))
    spread = max(means) - min(means)
    return Interval(spread - half, spread + half)


def mcnemar(first: Answers, second: Answers) -> McNemar:
    """Exact. Raises ValueError for models of two trainings, and for other inputs."""
    if first.training != second.training:
        raise ValueError("McNemar's test compares two given models of one training; two trainings are compared by their seeds")
    if list(first.index) != list(second.index) or not len(first.index) == len(first.right) == len(second.right):
        raise ValueError("McNemar's test needs the answers of both models to the same inputs")
    one, other = np.asarray(first.right, dtype=bool), np.asarray(second.right, dtype=bool)
    only_first, only_second = int(np.sum(one & ~other)), int(np.sum(other & ~one))
    p = float(exact_mcnemar([[0, only_first], [only_second, 0]], exact=True).pvalue) if only_first + only_second else 1.0
    return McNemar(only_first, only_second, p)


def _values(by_seed: Mapping[int, float], seeds: Sequence[int]) -> np.ndarray:
    return np.round(np.array([by_seed[seed] for seed in seeds], dtype=np.float64), DECIMALS)


def _welch_interval(a: np.ndarray, b: np.ndarray) -> Interval:
    if np.ptp(a) == 0 and np.ptp(b) == 0:
        same = float(a[0] - b[0])
        return Interval(same, same)
    low, high = CompareMeans(DescrStatsW(a), DescrStatsW(b)).tconfint_diff(ALPHA, usevar="unequal")
    return Interval(float(low), float(high))


def _signed_rank(a: np.ndarray, b: np.ndarray) -> float:
    differences = np.round(a - b, DECIMALS)
    differences = differences[differences != 0]  # a seed without a difference speaks for neither side
    if not len(differences):
        return 1.0
    distinct = len(set(np.abs(differences))) == len(differences)
    return float(stats.wilcoxon(differences, method="exact" if distinct else _permutations()).pvalue)


def _rank_sum(a: np.ndarray, b: np.ndarray) -> float:
    distinct = len({*a, *b}) == len(a) + len(b)
    return float(stats.mannwhitneyu(a, b, method="exact" if distinct else _permutations()).pvalue)


def _permutations() -> stats.PermutationMethod:
    return stats.PermutationMethod(n_resamples=ARRANGEMENTS, rng=np.random.default_rng(0))
