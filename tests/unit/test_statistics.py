"""What may be claimed of seeds: by hand, and by published examples."""

import math

import pytest
from scipy import stats

from sweep import claims, statistics
from sweep.records import CellRecord
from sweep.statistics import Answers, Interval, beyond_control, compare, control_difference, estimate, holm, mcnemar, smallest_p


def by_seed(*values):
    return dict(enumerate(values))


def test_mean_spread_and_interval():
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)  # t of 4 degrees of freedom, from a table
    assert (found.n, found.mean, found.sd) == (5, 3.0, pytest.approx(math.sqrt(2.5)))
    assert found.interval == pytest.approx((3 - half, 3 + half), abs=1e-6)
    assert estimate([0.1, 0.1, 0.1]) == (3, 0.1, 0.0, Interval(0.1, 0.1))
    assert estimate([0.5]) == (1, 0.5, None, None)
    with pytest.raises(ValueError, match="no value"):
        estimate([])


def test_the_signed_rank_test_on_darwins_maize():
    """Fisher, The design of experiments, 1935: crossed less self-fertilised plants. Of 15 pairs the ranks of 48 and 67 are negative: 24."""
    differences = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    found = compare(by_seed(*map(float, differences)), by_seed(*[0.0] * 15), paired=True)
    assert (found.paired, found.n, found.difference) == (True, 15, pytest.approx(314 / 15))
    assert found.p == pytest.approx(0.0412598, abs=1e-7)


def test_equal_differences_are_ties_though_not_as_doubles():
    assert 0.9883 - 0.9881 != 0.9885 - 0.9883
    first, second = by_seed(*[0.9883, 0.9885] * 3), by_seed(*[0.9881, 0.9883] * 3)
    found = compare(first, second, paired=True)
    assert found.p == 2 / 2**6  # all of one sign and size
    assert found.interval == pytest.approx((0.0002, 0.0002), abs=1e-12)
    assert compare(first, first, paired=True).p == 1.0


def test_only_common_seeds_are_paired():
    found = compare({0: 1.0, 1: 2.0, 2: 9.0}, {1: 1.5, 2: 8.5, 3: 0.0}, paired=True)
    assert (found.n, found.difference, found.p) == (2, 0.5, None)
    assert compare({0: 1.0, 1: 2.0, 2: 9.0}, {1: 1.0, 2: 3.0}, paired=False).difference == 2.0
    with pytest.raises(ValueError, match="no seed"):
        compare({0: 1.0}, {1: 1.0}, paired=True)


def test_the_rank_sum_test_by_counting():
    """Of the 924 ways to choose 6 of 12 ranks, one gives U = 0 and one gives U = 1."""
    low, high = by_seed(1, 2, 3, 4, 5, 6), by_seed(7, 8, 9, 10, 11, 12)
    assert compare(low, high, paired=False).p == pytest.approx(2 / 924)
    assert compare(by_seed(1, 2, 3, 4, 5, 7), by_seed(6, 8, 9, 10, 11, 12), paired=False).p == pytest.approx(4 / 924)
    assert compare(by_seed(*[1] * 6), by_seed(*[2] * 6), paired=False).p == pytest.approx(2 / 924)
    assert compare(by_seed(1, 2, 3, 4, 5), by_seed(6, 7, 8, 9, 10, 11), paired=False).p is None


def test_effects():
    first, second = [1.0, 2.0, 3.0], [2.0, 2.0, 4.0]
    found = compare(by_seed(*first), by_seed(*second), paired=False)
    assert found.cliffs_delta == pytest.approx(-3 / 9)  # 1 loses thrice, 2 ties twice and loses once, 3 wins twice and loses once
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert found.interval == pytest.approx((welch.low, welch.high))
    assert compare(by_seed(1.0, 1.0), by_seed(3.0, 3.0), paired=False).interval == (-2.0, -2.0)


def test_how_many_seeds_can_reject():
    assert smallest_p(5, 5, paired=True) == 0.0625 > 0.05 > smallest_p(6, 6, paired=True) == 0.03125
    assert smallest_p(7, 7, paired=True) > 0.05 / 6 > smallest_p(8, 8, paired=True) == 2 / 256
    assert smallest_p(8, 8, paired=False) == 2 / 12870
    assert smallest_p(5, 5, paired=False) == 2 / 252


def test_holm():
    assert holm([0.01, 0.04, None, 0.03, 0.005]) == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06), pytest.approx(0.02)]
    assert holm([None]) == [None]


def test_the_control():
    assert control_difference({0: 0.5, 1: 0.6, 2: 0.9}, {0: 0.4, 1: 0.9, 3: 0.0}) == pytest.approx(0.2)
    assert control_difference({0: 0.5}, {1: 0.5}) is None
    assert beyond_control(-0.3, [0.1, 0.2]) is True
    assert beyond_control(0.3, [0.1, 0.3]) is False
    assert beyond_control(0.3, [None, 0.3]) is False
    assert beyond_control(0.3, [None, 0.1]) is None
    assert beyond_control(0.3, []) is None


def test_a_share_of_images():
    assert statistics.share_interval(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=5e-5)


def test_the_best_of_several():
    assert statistics.expected_best(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert statistics.expected_best(5) == pytest.approx(1.16296, abs=1e-5)  # Harter 1961, table 1


def test_two_given_models():
    first = Answers("one", range(10), [True] * 9 + [False])
    second = Answers("one", range(10), [True, True] + [False] * 7 + [True])
    assert mcnemar(first, second) == (7, 1, pytest.approx(2 * (1 + 8) / 2**8))
    assert mcnemar(first, first) == (0, 0, 1.0)


def test_two_frameworks_are_no_two_given_models():
    with pytest.raises(ValueError, match="two trainings are compared by their seeds"):
        mcnemar(Answers("one", [0], [True]), Answers("another", [0], [True]))
    with pytest.raises(ValueError, match="same inputs"):
        mcnemar(Answers("one", [0], [True]), Answers("one", [1], [True]))


def row(framework, seed, accuracy, status="ok", tags=None, training=None, metrics=None, **params):
    made = {
        "framework": framework, "framework_version": "1.0", "runtime_version": "1.0", "dataset": "d", "architecture": "n", "seed": str(seed),
        "recipe": "defaults", "weights": "trained", "control": "none", "runtime": "native", "attack": "none", "route": "native",
    } | params
    training = training or "-".join((framework, str(seed), made["control"], made["recipe"]))
    return CellRecord(str(made), "", made, {"status": status} | (tags or {}), {"accuracy": accuracy} | (metrics or {}), [training, "later"])


def rows(framework, values, **params):
    return [row(framework, seed, value, **params) for seed, value in enumerate(values)]


LOW, HIGH = [0.80 + seed / 1000 for seed in range(8)], [0.90 + seed / 1000 for seed in range(8)]


def pairs(*parts):
    return claims.pairs(claims.groups([each for part in parts for each in part], "accuracy"))


def test_rows_that_rest_on_one_training_count_once():
    found = claims.groups([
        *rows("a", LOW), *rows("a", LOW, attack="fgsm", attack_eps="0.1", tags={"access": "white-box"}), row("a", 8, 0.5, status="failed"),
        *rows("a", HIGH[:2], control="one_ulp"),
    ], "accuracy")
    assert [(group.control, group.estimate.n) for group in found] == [("none", 8), ("one_ulp", 2)]
    assert "attack_eps" not in found[0].params
    assert claims.groups(rows("a", LOW), "robust_accuracy") == []


def test_attacks_are_groups_of_their_own_metrics():
    attacked = [row("a", 0, 0.9, metrics={"robust_accuracy": 0.1}, tags={"access": access}, attack=attack)
                for attack, access in (("fgsm", "white-box"), ("pgd", "white-box"), ("fgsm", "transfer:same-weights"))]
    found = claims.groups(attacked, "robust_accuracy")
    assert [(group.params["attack"], claims.frameworks_own(group)) for group in found] == [("fgsm", True), ("pgd", True), ("fgsm", False)]


def test_a_family_is_of_one_metric():
    attacked = [row(name, seed, 0.9, metrics={"robust_accuracy": 0.1, "attack_success_rate": 0.8}, tags={"access": "white-box"}, attack="fgsm")
                for name in "ab" for seed in range(2)]
    found = claims.pairs([group for metric in claims.METRICS for group in claims.groups(attacked, metric)])
    assert [(pair.first.metric, pair.second.metric) for pair in found] == [(metric, metric) for metric in claims.METRICS]
    assert {(pair.first.framework, pair.second.framework) for pair in found} == {("a", "b")}


def test_a_difference_with_its_controls():
    base = [*rows("a", LOW), *rows("b", HIGH)]
    moved = [*rows("a", [v + 0.01 for v in LOW], control="one_ulp"), *rows("b", [v - 0.02 for v in HIGH], control="one_ulp")]
    double = [*rows("a", LOW, control="float64"), *rows("b", HIGH, control="float64")]
    (pair,) = pairs(base, moved, double)
    assert (pair.comparison.paired, pair.comparison.n, pair.comparison.difference) == (False, 8, pytest.approx(-0.1))
    assert pair.p_holm == pytest.approx(2 / 12870)
    assert pair.controls == ((pytest.approx(0.01), pytest.approx(0.02)), True, True)
    assert pair.verdict == "b is higher than a, beyond one ulp, in float64 too: not rounding"
    (pair,) = pairs(base, moved, rows("a", LOW, control="float64"), rows("b", LOW, control="float64"))
    assert pair.verdict == "b is higher than a, beyond one ulp, but not shown in float64"
    (pair,) = pairs(base, moved, rows("a", HIGH, control="float64"), rows("b", LOW, control="float64"))
    assert pair.controls.in_float64 is False  # it differs, the other way round
    (pair,) = pairs(base, moved, double[:7], double[8:])
    assert pair.verdict == "b is higher than a, beyond one ulp; not known whether in float64"
    (pair,) = pairs(base, rows("a", [v + 0.11 for v in LOW], control="one_ulp"))
    assert pair.verdict == "b is higher than a, by no more than one ulp in the initial weights does: no claim"
    (pair,) = pairs(base)
    assert pair.verdict == "b is higher than a; not known whether beyond one ulp: a control is missing"


def test_too_few_seeds_make_no_claim():
    for n, verdict, tested in (
        (7, "7 seeds, no claim below 8", True), (5, "5 seeds, no claim below 8; the interval alone", False),
        (1, "1 seed, no claim below 8; the interval alone", False),
    ):
        (pair,) = pairs(rows("a", LOW[:n]), rows("b", HIGH))
        assert (pair.verdict, pair.p_holm is not None) == (verdict, tested)
    (pair,) = pairs(rows("a", LOW), rows("b", LOW))
    assert pair.verdict == "no difference shown"


def test_pairing_is_for_identical_starts_and_large_families_need_more_seeds():
    values = [[base + level / 10 for base in LOW] for level in range(5)]
    four = pairs(*(rows(name, each, recipe="identical") for name, each in zip("abcd", values)))
    assert [(pair.comparison.paired, pair.p_holm) for pair in four] == [(True, pytest.approx(6 * 2 / 256))] * 6
    assert all("is higher" in pair.verdict for pair in four)
    five = pairs(*(rows(name, each, recipe="identical") for name, each in zip("abcde", values)))
    assert {pair.verdict for pair in five} == {"8 seeds can't decide among 10 pairs"}
    (pair,) = pairs(rows("a", LOW[:1], recipe="identical"), [row("b", 5, 0.9, recipe="identical")])
    assert (pair.comparison, pair.verdict) == (None, "no seed in common")


def test_what_is_no_comparison_of_frameworks():
    assert pairs(rows("a", LOW), rows("b", HIGH, recipe="matched")) == []
    assert pairs(rows("a", LOW, weights="same", weights_from="a"), rows("b", LOW, weights="same", weights_from="a")) == []
    assert pairs(rows("a", LOW, route="onnx"), rows("b", LOW, route="onnx")) == []
    assert pairs(rows("a", LOW), rows("b", HIGH, train_epochs="2")) == []
    (pair,) = pairs(rows("a@1", LOW), rows("a@2", HIGH, framework_version="2.0", runtime_version="2.0"))
    assert (pair.first.framework, pair.second.framework) == ("a@1", "a@2")


def test_the_range_of_several_means_has_the_interval_of_a_range():
    """Three groups of four, pooled sd 1: the 95 % point of the studentised range for 3 and 9 is 3.948 (Tukey's tables), halved by the root
    of four."""
    shape = [-1.161895, -0.387298, 0.387298, 1.161895]  # mean 0, sd 1
    interval = statistics.range_interval([[value + mean for value in shape] for mean in (10.0, 11.0, 13.0)])
    assert (interval.low, interval.high) == (pytest.approx(3 - 3.948 / 2, abs=1e-3), pytest.approx(3 + 3.948 / 2, abs=1e-3))
    assert statistics.range_interval([[1.0], [2.0, 3.0]]) is None
