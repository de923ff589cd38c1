"""The study's protocol on outcomes that are worked out by hand."""

import pandas
import pytest

from sweep.records import CellRecord
from sweep.robustness import attacked, robustness

BASE = {
    "dataset": "mnist", "architecture": "lenet1", "recipe": "defaults", "weights": "trained", "control": "none", "seed": "0",
    "runtime": "native", "quantization": "float32", "device": "localhost", "framework_version": "1.0",
}


def row(key, framework, attack, access="white-box", status="ok", **params):
    return CellRecord(key, key, BASE | {"framework": framework, "attack": attack} | params, {"status": status, "access": access}, {}, [])


def outcomes(before, after):
    """Ten inputs of label 1; the models answer 1 or 0."""
    return pandas.DataFrame({"index": range(10), "label": [1] * 10, "prediction_before": before, "prediction": after})


ALL, NOT_LAST = [1] * 10, [1] * 9 + [0]


def test_success_ranks_and_repeats():
    rows = [
        row("a1", "a", "fgsm"), row("b1", "b", "fgsm"),
        row("a2", "a", "square(seed=0)"), row("a3", "a", "square(seed=1)"), row("b2", "b", "square(seed=0)"),
        row("a4", "a", "fgsm(seed=7)"),  # the same again: it isn't randomised
        row("a5", "a", "pgd", status="failed"),
    ]
    found = {
        "a1": outcomes(ALL, [0, 0, 0] + [1] * 7),  # of the nine common inputs three: a third
        "b1": outcomes(NOT_LAST, [0] * 6 + [1] * 3 + [0]),  # six: two thirds; the last was wrong before
        "a2": outcomes(ALL, [1] * 10), "a3": outcomes(ALL, [0] * 9 + [1]),  # none and all: a half
        "b2": outcomes(NOT_LAST, [1] * 10),
        "a4": outcomes(ALL, [0] * 10),
    }
    lines = {(line["attack"], line["framework"]): line for line in robustness(rows, found).data}
    assert {at: (line["inputs"], line["repeats"]) for at, line in lines.items()} == {
        ("fgsm", "a 1.0"): (9, 1), ("fgsm", "b 1.0"): (9, 1), ("square", "a 1.0"): (9, 2), ("square", "b 1.0"): (9, 1),
    }
    rates = {at: line["success_rate"] for at, line in lines.items()}
    assert rates == pytest.approx({
        ("fgsm", "a 1.0"): 1 / 3, ("fgsm", "b 1.0"): 2 / 3, ("square", "a 1.0"): 0.5, ("square", "b 1.0"): 0,
    })
    assert {at: line["P"] for at, line in lines.items()} == {
        ("fgsm", "a 1.0"): 0, ("fgsm", "b 1.0"): 1, ("square", "a 1.0"): 1, ("square", "b 1.0"): 0,
    }
    assert {line["R"] for line in lines.values()} == {1}
    # Wilson's interval of three of nine: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    assert (lines["fgsm", "a 1.0"]["low"], lines["fgsm", "a 1.0"]["high"]) == pytest.approx((0.1206, 0.6458), abs=1e-4)


def test_what_is_carried_over_has_a_rate_and_no_rank():
    rows = [
        row("a", "a", "fgsm"), row("b", "b", "fgsm"),
        row("a2", "a", "pgd(crafted_on=c)", access="transfer:abc"), row("b2", "b", "pgd(crafted_on=c)", access="transfer:def"),
    ]
    found = {"a": outcomes(ALL, [0] * 10), "b": outcomes(ALL, ALL), "a2": outcomes(ALL, ALL), "b2": outcomes(ALL, [0] * 10)}
    lines = robustness(rows, found).data
    assert [(line["access"], line["success_rate"], line["P"], line["R"]) for line in lines] == [
        ("white-box", 1, 1, 1), ("white-box", 0, 0, 0), ("transfer", 0, None, None), ("transfer", 1, None, None),
    ]


def test_an_attack_that_a_model_lacks_leaves_no_sum():
    rows = [row("a", "a", "pgd"), row("b", "b", "pgd"), row("a2", "a", "square")]
    found = {"a": outcomes(ALL, [0] * 10), "b": outcomes(ALL, ALL), "a2": outcomes(ALL, ALL)}
    lines = robustness(rows, found).data
    assert [(line["attack"], line["framework"], line["P"], line["R"]) for line in lines] == [
        ("pgd", "a 1.0", 1, None), ("pgd", "b 1.0", 0, None), ("square", "a 1.0", None, None),
    ]


def test_each_attack_has_inputs_of_its_own():
    """One that is slow takes few; where all models were wrong on all of them, it says so."""
    rows = [row("a", "a", "fgsm"), row("b", "b", "fgsm"), row("a2", "a", "boundary"), row("b2", "b", "boundary")]
    few = outcomes(ALL, ALL).head(2)
    found = {"a": outcomes(ALL, ALL), "b": outcomes(NOT_LAST, NOT_LAST), "a2": few, "b2": few}
    assert [(line["attack"], line["inputs"]) for line in robustness(rows, found).data] == [("fgsm", 9), ("fgsm", 9), ("boundary", 2), ("boundary", 2)]
    found["b2"] = outcomes([0] * 10, ALL).head(2)
    assert [line["success %"] for line in robustness(rows, found).shown][2:] == ["no input that all answer right"] * 2


def test_other_settings_are_no_repeats():
    rows = [row(f"{name}{eps}", name, "square", attack_eps=eps) for name in "ab" for eps in ("0.1", "0.3")]
    found = {f"{name}{eps}": outcomes(ALL, [0] * 10 if eps == "0.3" else ALL) for name in "ab" for eps in ("0.1", "0.3")}
    lines = robustness(rows, found).data
    assert [(line["repeats"], line["success_rate"]) for line in lines] == [(1, 0), (1, 0), (1, 1), (1, 1)]


def test_models_that_differ_in_more_than_their_framework_are_not_compared():
    rows = [row("a", "a", "pgd"), row("b", "b", "pgd", quantization="static_int8")]
    assert robustness(rows, {"a": outcomes(ALL, ALL), "b": outcomes(ALL, ALL)}).data == []
    equal = robustness([row("a", "a", "pgd"), row("b", "b", "pgd")], {"a": outcomes(ALL, ALL), "b": outcomes(ALL, ALL)}).data
    assert [(line["success_rate"], line["P"], line["R"]) for line in equal] == [(0, 0, 0), (0, 0, 0)]


def test_attacked_models():
    made = row("a", "a", "pgd", access="score", attack_norm="inf", attack_eps="0.1")
    made.tags["attack_flags"] = "undercut"
    made.metrics.update(robust_accuracy=1 / 3, attack_n=9.0, attack_queries=41.0)
    (line,) = attacked([made, row("b", "b", "none", access="")]).shown
    assert {name: line[name] for name in ("attack", "access", "eps", "inputs", "robust %", "queries", "flags")} == {
        "attack": "pgd", "access": "score", "eps": "0.1", "inputs": "9", "robust %": "33.3 [12.1, 64.6]", "queries": "41.0", "flags": "undercut",
    }
