"""A paper's numbers as data, and our rows beside them."""

import copy
import math
from pathlib import Path

import pytest
import yaml

from sweep import paper
from sweep.beside import beside
from sweep.errors import ConfigError
from sweep.records import CellRecord

GUO = Path(__file__).parents[2] / "configs" / "papers" / "guo2019.yaml"

SMALL = {
    "title": "A study", "source": "somewhere",
    "setups": {
        "desk": {
            "frameworks": {"a": "1.0", "b": "2.0"}, "machine": "m", "protocol": "p", "recipes": ["defaults"],
            "training": {"net": {"epochs": 200, "learning_rate": 0.05, "optimizer": "sgd"}},
        },
    },
    "data": {"d": {"test": 100, "altered": {"d-jpeg": "compressed again"}}},
    "architectures": {"net": "d", "other": "d"},
    "tables": [{
        "id": "t", "source": "Table 1", "setup": "desk", "metric": "accuracy", "unit": "percent", "widest": 3.0,
        "where": {"weights": "trained", "control": "none", "runtime": "native"}, "by": ["architecture", "framework"],
        "values": {"net": {"a": 50.0, "b": "out of memory"}, "other": {"a": 40.0}},
    }],
    "claims": [],
}


@pytest.fixture(scope="module")
def guo():
    return paper.load(GUO)


def small(**changes):
    return paper.Paper.model_validate(copy.deepcopy(SMALL) | changes)


def table(**changes):
    return {"tables": [SMALL["tables"][0] | changes]}


def claim(**fields):
    made = {"id": "c", "says": "so", "source": "Table 1", "setup": "desk", "kind": "spread", "where": {}, "low": 0.0, "high": 1.0, "widest": 1.0}
    return {"claims": [made | fields]}


def row(seed, accuracy, tags=None, metrics=None, **params):
    made = {
        "framework": "a", "framework_version": "1.0", "runtime_version": "1.0", "dataset": "d", "architecture": "net", "seed": str(seed),
        "recipe": "defaults", "weights": "trained", "control": "none", "runtime": "native", "quantization": "float32", "device": "localhost",
        "attack": "none", "route": "native", "train_epochs": "200", "train_learning_rate": "0.05", "train_optimizer": "sgd",
        "train_examples": "all",
    } | params
    made |= {"framework_version": "2.0"} if made["framework"] == "b" else {}
    training = f"{made['framework']} {made.get('weights_from', '')} {seed}"
    return CellRecord(str(made), "", made, {"status": "ok", "dataset_source": "idx"} | (tags or {}), {"accuracy": accuracy, "eval_n": 100.0} | (metrics or {}), [training])


def rows(*accuracies, **params):
    return [row(seed, accuracy, **params) for seed, accuracy in enumerate(accuracies)]


def lines(made, ours, id="t"):
    return [line for line in beside(made, ours) if line.id == id]


def said(made, ours, id="t"):
    return [(line.number, line.said) for line in lines(made, ours, id)]


def test_within_the_tolerance():
    """Equal seeds have an interval of nothing; the paper's 50 of 100 images is 40.38 to 59.62 % by Wilson."""
    (first, *_rest) = lines(small(), rows(0.59, 0.59))
    assert first.tolerance == pytest.approx(9.6169, abs=1e-3)
    assert (first.ours, first.paper, first.n, first.said) == (pytest.approx(59.0), "50.00", 2, "reproduced")
    assert lines(small(), rows(0.60, 0.60))[0].said == "differs"


def test_both_intervals_make_the_tolerance():
    """Seeds 0.49, 0.50, 0.51: sd 0.01, half-width of the mean 4.302653 x 0.01 / sqrt(3) = 2.4841 points, of one more run 4.302653 x 0.01 x
    sqrt(1 + 1 / 3) = 4.9683."""
    found = lines(small(), rows(0.49, 0.50, 0.51))[0]
    assert found.tolerance == pytest.approx(math.hypot(4.9683, 9.6169), abs=1e-3)
    assert found.said == "reproduced"
    narrow = lines(small(**table(widest=2.0)), rows(0.49, 0.50, 0.51))[0]
    assert narrow.said == "not comparable (3 seeds leave ± 2.48 points, which says nothing above 2)"


def test_the_best_of_five_is_said_to_be_high():
    setups = {"setups": {"desk": SMALL["setups"]["desk"] | {"best_of": 5}}}
    assert lines(small(**setups), rows(0.49, 0.50, 0.51))[0].why == (
        "the paper's is the best of 5 runs: 1.16 above their mean is expected, by our spread"
    )


@pytest.mark.parametrize(("changes", "why"), [
    ({"framework_version": "1.1+cpu"}, "a 1.1, the paper has 1.0"),
    ({"tags": {"dataset_source": "d-jpeg"}}, "d from d-jpeg: compressed again"),
    ({"metrics": {"eval_n": 50.0}}, "evaluated on 50 of 100 test examples"),
    ({"recipe": "identical"}, "recipe identical, the paper has defaults"),
    ({"train_examples": "2000"}, "trained on 2000 examples"),
    ({"train_epochs": "4"}, "epochs 4, the paper has 200"),
    ({"train_learning_rate": "0.1"}, "learning_rate 0.1, the paper has 0.05"),
    ({"train_optimizer": "adam"}, "optimizer adam, the paper has sgd"),
])
def test_what_is_not_comparable(changes, why):
    assert lines(small(), rows(0.5, 0.5, **changes))[0].said == f"not comparable ({why})"


def test_versions_that_are_the_same_release():
    for version in ("1.0+cpu", "1.0.post2"):
        assert lines(small(), rows(0.5, 0.5, framework_version=version))[0].said == "reproduced"
    assert lines(small(), rows(0.5, 0.5, framework="a@1.0"))[0].ours_of == "a@1.0 1.0 defaults"


def test_numbers_that_are_not_there():
    found = said(small(), [*rows(0.5), *rows(0.5, framework="b"), *rows(0.5, framework="c", framework_version="7")])
    assert found == [
        ("net a", "not comparable (one seed has no interval)"),
        ("net b", "not comparable (the paper has no number: out of memory)"),
        ("other a", "not run"),
        ("d net", "not comparable (the paper has no c)"),
    ]
    assert said(small(), rows(0.5, 0.5, architecture="third"))[-1] == ("d third", "not comparable (the paper has no third on d)")
    assert said(small(**table(incomparable="of a GPU")), rows(0.5, 0.5))[0] == ("net a", "not comparable (of a GPU)")


def test_smoke_is_never_beside_the_paper():
    found = lines(small(), rows(0.5, 0.5, label="smoke"))
    assert next((line.number, line.said, line.why, line.ours) for line in found) == ("net a", "not run", "smoke alone", None)
    assert {line.said for line in found} == {"not run"}
    ours = [*rows(*[0.5] * 8, label="smoke"), *rows(*[0.6] * 8, framework="b", label="smoke")]
    assert said(small(**claim()), ours, "c") == [("so", "not run")]


def test_the_spread_between_frameworks():
    low, high = [0.500] * 8, [0.505] * 8
    ours = [*rows(*low), *rows(*high, framework="b"), *rows(*[0.502] * 8, framework="c", framework_version="9")]
    (found,) = lines(small(**claim(high=0.1)), ours, "c")  # 0.5 points, and a tolerance of rounding alone
    assert (found.ours, found.tolerance, found.said) == (pytest.approx(0.5), pytest.approx(0.01), "differs")
    assert found.ours_of == "3 frameworks, b 2.0 defaults, a 1.0 defaults"
    assert said(small(**claim(high=0.495)), ours, "c") == [("d net: so", "reproduced")]
    assert said(small(**claim(low=0.52, high=1.0)), ours, "c") == [("d net: so", "differs")]
    few = [each for each in ours if int(each.params["seed"]) < 7]
    assert said(small(**claim()), few, "c") == [("d net: so", "not comparable (7 seeds, no claim below 8)")]
    assert said(small(**claim()), rows(*low), "c") == [("so", "not run")]
    assert said(small(**claim(where={"dataset": "e"})), ours, "c") == [("so", "not run")]
    short = [*rows(*low, train_epochs="1"), *rows(*high, framework="b", train_epochs="1")]
    assert said(small(**claim()), short, "c") == [("d net: so", "not comparable (epochs 1, the paper has 200)")]


def test_changes_with_the_same_weights():
    same = {"weights": "same", "weights_from": "a"}
    ours = [*rows(0.5, 0.6, **same), *rows(0.5, 0.6, framework="b", **same), *rows(0.42, 0.52, framework="c", **same)]
    made = small(**claim(kind="same_weights_change", high=0.0))
    assert [(line.ours_of, line.ours, line.said) for line in lines(made, ours, "c")] == [
        ("b 2.0 defaults", pytest.approx(0.0), "reproduced"), ("c 1.0 defaults", pytest.approx(-8.0), "differs"),
    ]


def test_changes_by_conversion():
    ours = [row(seed, 0.5 - change, metrics={"source_accuracy": 0.5}, runtime="r", route="x", quantization="int")
            for seed, change in enumerate((0.001, 0.001))]
    made = claim(kind="conversion_change", where={"quantization": ["int", "short"]}, low=-0.12, high=0.12)
    assert [(line.ours, line.said) for line in lines(small(**made), ours, "c")] == [(pytest.approx(-0.1), "reproduced")]
    made = claim(kind="conversion_change", where={"quantization": "float32"}, low=-0.12, high=0.12)
    assert said(small(**made), ours, "c") == [("so", "not run")]


def cells(found, id):
    (chosen,) = (table for table in found.tables if table.id == id)
    return {number.name: number.value for number in paper.numbers(chosen)}


def test_what_the_study_printed(guo):
    accuracy = cells(guo, "accuracy")
    assert len(accuracy) == 7 * 4
    assert (accuracy["lenet1 mxnet"], accuracy["vgg16 cntk"], accuracy["gru pytorch"]) == (98.96, 82.77, 91.59)
    assert cells(guo, "seconds")["lstm pytorch"] == "out of memory"
    assert cells(guo, "same_weights_exception") == {"resnet20 cntk": 74.35}
    assert cells(guo, "attack_success")["boundary vgg16 mxnet"] == 100
    assert {table.id for table in guo.tables if table.read == "plot"} == {"attack_success"}
    assert cells(guo, "mobile_accuracy")["resnet20 weight_only_int8 mate20x"] == 82.93
    assert cells(guo, "web_accuracy")["resnet20"] == 77.08


def test_claims_follow_from_the_tables(guo):
    accuracy = cells(guo, "accuracy")
    claims = {claim.id: claim for claim in guo.claims}
    for id, architectures in (("spread_mnist", ("lenet1", "lenet5")), ("spread_cifar10", ("resnet20", "vgg16")), ("spread_imdb", ("textcnn", "lstm", "gru"))):
        spreads = []
        for architecture in architectures:
            values = [value for name, value in accuracy.items() if name.startswith(f"{architecture} ")]
            spreads.append(round(max(values) - min(values), 2))
        assert (claims[id].low if id != "spread_mnist" else min(spreads), claims[id].high) == (min(spreads), pytest.approx(max(spreads), abs=0.011))
    assert claims["same_weights_exception"].low == pytest.approx(74.35 - accuracy["resnet20 tensorflow"])
    assert claims["browser_exception"].low == pytest.approx(cells(guo, "web_accuracy")["resnet20"] - accuracy["resnet20 tensorflow"])
    generated = cells(guo, "mobile_generated_accuracy")
    drops = [generated[f"{name} weight_only_int8 nexus6"] - generated[f"{name} float32 nexus6"] for name in ("lenet1", "lenet5", "resnet20", "vgg16")]
    assert (min(drops), max(drops)) == (pytest.approx(claims["int8_generated"].low), pytest.approx(claims["int8_generated"].high))
    mobile = cells(guo, "mobile_accuracy")
    changes = [mobile[f"{name} weight_only_int8 {device}"] - mobile[f"{name} float32 {device}"]
               for name in ("lenet1", "lenet5", "resnet20") for device in ("nexus6", "mate20x", "iphone8")]
    assert max(map(abs, changes)) == pytest.approx(claims["int8_ordinary"].high)


def test_nothing_of_the_study_ran(guo):
    assert {line.said for line in beside(guo, [])} == {"not run"}


@pytest.mark.parametrize(("change", "message"), [
    (lambda c: c.pop("title"), "the key 'title' is missing"),
    (lambda c: c.update(titel="x"), "there is no key 'titel'"),
    (lambda c: c["tables"][0].update(setup="dsk"), "tables.t.setup: there is no 'dsk'; did you mean 'desk'?"),
    (lambda c: c["tables"][0].update(by=["architecture", "framwork"]), "tables.t: there is no 'framwork'; did you mean 'framework'?"),
    (lambda c: c["tables"][0].pop("widest"), "tables.t: only a table in percent with a `widest` may be compared; else say `incomparable`"),
    (lambda c: c["tables"][0].update(values={"net": 5}), "tables.t.values.net must be a mapping by framework, not 5"),
    (lambda c: c["tables"][0].update(values={"net": {"a": [1]}}), "tables.t.values.net.a must be a number, or a text that says why there is none"),
    (lambda c: c["tables"].append(c["tables"][0]), "tables: the id 't' stands twice"),
    (lambda c: c["architectures"].update(net="e"), "architectures: there is no 'e' in data"),
    (lambda c: c.update(claim(low=2.0)), "claims.c: low 2 exceeds high 1"),
    (lambda c: c["data"]["d"].update(test="many"), "data.d.test: input should be a valid integer, not 'many'"),
])
def test_errors_name_the_key(tmp_path, change, message):
    content = copy.deepcopy(SMALL)
    change(content)
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError) as raised:
        paper.load(path)
    assert str(raised.value).startswith(f"{path}: {message}")


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match="can't read .*No such file"):
        paper.load(tmp_path / "none.yaml")
    path = tmp_path / "paper.yaml"
    path.write_text("title: a\ntitle: b\n")
    with pytest.raises(ConfigError, match="the key 'title' stands twice"):
        paper.load(path)
    path.write_text("- a\n")
    with pytest.raises(ConfigError, match="the file: input should be a valid dictionary"):
        paper.load(path)
