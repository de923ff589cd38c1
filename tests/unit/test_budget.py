"""What a conversion may cost, read from a file and held against figures; and the report for continuous integration."""

from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from sweep import budget, gating, junit
from sweep.budget import Budget, Check, Limits
from sweep.errors import ConfigError

FOUND = {
    "verdict": "within tolerance", "reasons": [], "flips": 3, "disagreement": 0.003, "accuracy_drop": 0.001, "size_bytes": 70_000,
    "size_ratio": 0.28, "latency_ratio": 1.3, "latency_ratio_low": 1.15,
}


@pytest.fixture
def file(tmp_path):
    def write(text):
        (tmp_path / "budget.yaml").write_text(text)
        return tmp_path / "budget.yaml"

    return write


def test_one_budget_has_limits_for_all_and_for_some(file):
    found = budget.load(file("size_ratio: 0.5\ndisagreement: 1e-2\nmodels: {a.tflite: {quantization: static_int8, size_ratio: 0.3}}"))
    assert found.of("b.tflite") == Limits(size_ratio=0.5, disagreement=0.01)
    assert found.of("a.tflite") == Limits(size_ratio=0.3, disagreement=0.01, quantization="static_int8")
    assert Budget().of("any") == Limits()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flip: 3", "there is no key 'flip'; did you mean 'flips'?"),
        ("flips: -1", "flips: input should be greater than or equal to 0, not -1"),
        ("disagreement: 1.5", "disagreement: input should be less than or equal to 1, not 1.5"),
        ("disagreement: '0.1'", "disagreement: input should be a valid number, not '0.1'"),
        ("verdict: fine", "verdict: input should be 'equal', 'within tolerance', 'degraded' or 'broken', not 'fine'"),
        ("flips: 1\nflips: 2", "the key 'flips' stands twice"),
        ("flips: [", "is not valid YAML"),
        ("- flips", "valid dictionary"),
    ],
)
def test_a_wrong_budget_is_said_in_one_line(file, text, said):
    with pytest.raises(ConfigError, match="budget.yaml") as refused:
        budget.load(file(text))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_limits_of_one_conversion_are_as_strict(file, tmp_path):
    with pytest.raises(ConfigError, match=r"models\.a\.tflite\.flips"):
        budget.load(file("models: {a.tflite: {flips: none}}")).of("a.tflite")
    with pytest.raises(ConfigError, match="there is no 'static_int7'; did you mean 'static_int8'"):
        budget.load(file("quantization: static_int7")).of("a.tflite")
    with pytest.raises(ConfigError, match="'linear' may have any number of bits"):
        budget.load(file("quantization: linear")).of("a.tflite")
    with pytest.raises(ConfigError, match="can't read .*nothing.yaml: No such file"):
        budget.load(tmp_path / "nothing.yaml")


def broken(limits, **changes):
    return [check.name for check in budget.judge(FOUND | changes, limits) if not check.holds]


def test_only_limits_that_are_set_count():
    assert [check.name for check in budget.judge(FOUND, Limits())] == ["verdict"]
    assert broken(Limits()) == []


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"flips": 3, "disagreement": 0.003, "accuracy_drop": 0.001, "size_bytes": 70_000, "size_ratio": 0.28}, []),
        ({"flips": 2}, ["flips"]),
        ({"disagreement": 0.002}, ["disagreement"]),
        ({"accuracy_drop": 0.0}, ["accuracy_drop"]),
        ({"size_bytes": 69_999, "size_ratio": 0.25}, ["size_bytes", "size_ratio"]),
        ({"latency_ratio": 1.2}, []),  # the interval reaches below
        ({"latency_ratio": 1.1}, ["latency_ratio"]),
        ({"verdict": "equal"}, ["verdict"]),
        ({"verdict": "degraded"}, []),
    ],
)
def test_limits_are_the_most_that_may_be(limits, expected):
    assert broken(Limits(**limits)) == expected


def test_a_gain_in_accuracy_is_no_drop():
    assert broken(Limits(accuracy_drop=0.0), accuracy_drop=-0.01) == []


def test_worse_verdicts_break_it_with_their_reasons():
    wrong = FOUND | {"verdict": "broken", "reasons": ["one", "two"]}
    (check,) = budget.judge(wrong, Limits(verdict="degraded", quantization="static_int8"))
    assert check == Check("verdict", False, "broken: one; two")
    (check,) = budget.judge(wrong, Limits())
    assert check.said.startswith("broken: one; two; it was judged as a model in float32: `quantization` in the budget")


def test_a_limit_on_outputs_that_cannot_be_compared_is_broken_whatever_verdict_is_allowed():
    found = {"verdict": "broken", "reasons": ["outputs are [3] per input, and the source's [4]"], "size_bytes": 9, "size_ratio": 0.1}
    checks = budget.judge(found, Limits(verdict="broken", flips=0, disagreement=0.0, accuracy_drop=0.0, size_ratio=0.5))
    assert {check.name: check.holds for check in checks} == {
        "verdict": True, "flips": False, "disagreement": False, "accuracy_drop": False, "size_ratio": True,
    }


def test_an_empty_budget_is_the_default_one(file):
    assert budget.load(file("# nothing yet")).of("a.onnx") == Limits()


def test_outputs_in_another_order_break_it_where_they_may_not_be():
    assert broken(Limits(reordered_outputs=False), outputs_order=[1, 0]) == ["reordered_outputs"]
    checks = budget.judge(FOUND | {"outputs_order": [1, 0]}, Limits())
    assert checks[1] == Check("reordered_outputs", True, "its outputs are the source's in the order 1, 0")


def test_a_limit_on_what_there_is_not_is_bad_input():
    without = {name: value for name, value in FOUND.items() if name not in ("accuracy_drop", "flips")}
    with pytest.raises(ConfigError, match="accuracy_drop: there is no such figure without labels beside the inputs"):
        budget.judge(without, Limits(accuracy_drop=0.1))
    with pytest.raises(ConfigError, match="flips: there is no such figure without a model with one output for each class"):
        budget.judge(without, Limits(flips=1))
    assert broken(Limits(flips=1), verdict="broken") == ["verdict", "flips"]
    checks = budget.judge(without | {"verdict": "broken", "reasons": ["another shape"]}, Limits(flips=1))
    assert [(check.name, check.holds) for check in checks] == [("verdict", False), ("flips", False)]


def model(outputs, *shapes):
    return SimpleNamespace(outputs=outputs, details={"outputs": [{"shape": shape} for shape in shapes]})


def test_several_outputs_are_told_by_shape_and_then_by_values():
    random = np.random.RandomState(0)
    a, b, c = (random.normal(0, 1, (6, size)).astype(np.float32) for size in (4, 4, 2))
    source = model(np.concatenate([a, b, c], axis=1), [None, 4], [None, 2, 2], [None, 2])
    outputs, order = gating._in_order(model(np.concatenate([c, b, a + 1e-6], axis=1), [None, 2], [None, 4], [None, 4]), source)
    assert order == [2, 1, 0]
    assert np.allclose(outputs, source.outputs, atol=1e-5)
    assert gating._in_order(source, source)[1] is None
    other = model(np.concatenate([a, c], axis=1), [None, 4], [None, 2])
    assert gating._in_order(other, source) == (other.outputs, None)  # the verdict says what is wrong with it
    unknown = model(source.outputs, [None, 4], [None, None], [None, 2])
    assert gating._in_order(unknown, source)[1] is None


def test_the_report_is_what_continuous_integration_reads(tmp_path):
    checks = [Check("verdict", True, "equal"), Check("flips", False, "3, and 2 is allowed <really>")]
    junit.write(tmp_path / "report.xml", [("a.onnx", {"flips": 3}, checks, ""), ("b.onnx", {}, [], "b.onnx: damaged")])
    suites = ElementTree.parse(tmp_path / "report.xml").getroot().findall("testsuite")
    assert [suite.attrib for suite in suites] == [
        {"name": "a.onnx", "tests": "2", "failures": "1", "errors": "0"}, {"name": "b.onnx", "tests": "1", "failures": "0", "errors": "1"},
    ]
    first, second = suites[0].findall("testcase")
    assert first.attrib == {"classname": "a.onnx", "name": "verdict"}
    assert len(first) == 0
    assert second.find("failure").get("message") == "3, and 2 is allowed <really>"
    assert suites[1].find("testcase/error").get("message") == "b.onnx: damaged"
