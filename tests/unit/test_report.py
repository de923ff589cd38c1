"""The report of a sweep's rows, on a real database."""

import csv
from dataclasses import replace
from pathlib import Path

import pandas
import pytest
import yaml
from mlflow.tracking import MlflowClient

from sweep import recorded, report
from sweep.records import CellRecord, Result, write_manifest
from sweep.tracking import Tracker

PAPER = Path(__file__).parents[2] / "configs" / "papers" / "guo2019.yaml"


def row(framework, seed, accuracy, status="ok", tags=None, metrics=None, **params):
    made = {
        "framework": framework, "framework_version": "1.0", "runtime_version": "1.0", "dataset": "mnist", "architecture": "lenet1",
        "seed": seed, "recipe": "identical", "weights": "trained", "control": "none", "runtime": "native", "quantization": "float32",
        "device": "localhost", "attack": "none", "route": "native", "train_epochs": 200,
    } | params
    found = {"accuracy": accuracy, "eval_n": 10000.0} if status == "ok" else {}
    key = "-".join(map(str, made.values()))
    tags = {"status": status, "dataset_source": "idx"} | (tags or {})
    return CellRecord(key, key, made, tags, found | (metrics or {}), [f"{framework}{seed}{made['control']}", f"evaluate {key}"])


ROWS = [
    *(row("a", seed, 0.98 + seed / 1000) for seed in range(8)),
    *(row("b", seed, 0.97 + seed / 1000) for seed in range(8)),
    *(row("a", seed, 0.98 + seed / 1000 + 0.001, control="one_ulp") for seed in range(8)),
    *(row("b", seed, 0.97 + seed / 1000 - 0.002, control="one_ulp") for seed in range(8)),
    row("a", 0, 0.5, label="smoke", train_epochs=1, tags={"training": "parts from b at step 3"}, metrics={"trace_loss_diff_max": 0.25}),
    *(
        row("b", seed, 0.98, weights="same", weights_from="a", tags={"parity": parity, "diagnosis": "layer conv1: kernel flip"}, metrics={
            "logit_diff_max": difference, "parity_tolerance": 8e-6, "parity_logit_diff_max": difference, "parity_decided_disagreements": 3.0,
        })
        for seed, difference, parity in ((0, 1e-6, "holds"), (1, 0.5, "broken"))
    ),
    row("c", 0, 0.0, status="skipped", tags={"reason": "c does not build conv"}),
    row("c", 1, 0.0, status="skipped", tags={"reason": "c does not build conv"}),
    row("c", 2, 0.0, status="failed", tags={"failure_class": "diverged", "failed_stage": "train", "message": "loss | is nan"}),
]


DISAGREES = row(
    "d", 0, 0.98, weights="same", weights_from="a", metrics={"disagreement": 0.8, "logit_diff_max": 1.0}, tags={"parity": "broken"}
)


@pytest.fixture
def store(database, tmp_path):
    uri = f"sqlite:///{database}"
    tracker = Tracker(uri, database.parent.joinpath("artifacts").as_uri(), "mine", "me")
    tracker.scan()
    tracker.open_sweep("config", {}, {})
    for key, right in (("master", [True] * 9 + [False]), ("copy", [True, True] + [False] * 7 + [True])):
        folder = tmp_path / "work" / key
        folder.mkdir(parents=True)
        outcomes = pandas.DataFrame({"index": range(10), "label": 1, "prediction": [int(each) for each in right]})
        outcomes.to_parquet(folder / "outcomes.parquet")
        tracker.open_stage(key, key, "evaluate", key, {})
        tracker.commit_stage(Result(key, "evaluate", key, "ok", digest=write_manifest(folder), folder=str(folder)))
    for each in (*ROWS, replace(DISAGREES, stages=["the training", "master", "copy"])):
        tracker.write_cell(each)
    tracker.close_sweep("FINISHED", {"cells_skipped": 5.0})
    return uri


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables(store, tmp_path, capsys):
    out = tmp_path / "out"
    assert report.main(["mine", "--store", store, "--out", str(out), "--paper", str(PAPER)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("mine: 36 ok, 1 failed, 2 skipped, and 3 skipped that skipped.csv of the sweep's run lists")
    assert f"{out / 'report.md'}" in printed

    frameworks = {(line["framework"], line["weights"], line["control"], line["label"]): line for line in table(out / "frameworks.csv")}
    assert frameworks["a", "trained", "none", ""]["n"] == "8"
    assert float(frameworks["a", "trained", "none", ""]["mean"]) == pytest.approx(0.9835)
    assert float(frameworks["a", "trained", "none", ""]["sd"]) == pytest.approx(0.00244949, abs=1e-8)  # sqrt(42 / 7) thousandths
    assert frameworks["a", "trained", "none", "smoke"]["n"] == "1"

    (pair,) = table(out / "pairs.csv")
    assert (pair["first"], pair["second"], pair["paired"], pair["n"], pair["pairs"]) == ("a 1.0", "b 1.0", "True", "8", "1")
    assert float(pair["difference"]) == pytest.approx(0.01)
    assert float(pair["p_holm"]) == pytest.approx(2 / 256)
    assert (float(pair["one_ulp_first"]), float(pair["one_ulp_second"])) == (pytest.approx(0.001), pytest.approx(0.002))
    assert (pair["beyond_control"], pair["in_float64"]) == ("True", "")
    assert pair["verdict"] == "a is higher than b, beyond one ulp; not known whether in float64"

    same, other = table(out / "same_weights.csv")
    assert (same["framework"], same["weights_from"], same["seeds"]) == ("b", "a", "2")
    assert (float(same["logit_diff_max"]), float(same["parity_tolerance"]), float(same["parity_decided_disagreements"])) == (0.5, 8e-6, 3.0)
    assert same["parity"] == "holds (1 of 2); broken (1 of 2)"
    assert (other["master_alone_right"], other["copy_alone_right"]) == ("7", "1")
    assert float(other["mcnemar_p"]) == 18 / 256  # 2 (1 + 8) of the 2^8 ways to split eight
    assert same["diagnosis"] == "layer conv1: kernel flip"

    (steps,) = table(out / "steps.csv")
    assert (steps["framework"], steps["loss_diff_max"], steps["verdict"]) == ("a", "0.25", "parts from b at step 3")

    not_ok = [(line["status"], line["cells"], line["frameworks"], line["reason"]) for line in table(out / "not_ok.csv")]
    assert not_ok == [("skipped", "2", "c", "c does not build conv"), ("failed", "1", "c", "diverged at train: loss | is nan")]

    text = (out / "report.md").read_text()
    assert "| a 1.0 | b 1.0 | 8 paired | 1.00 [1.00, 1.00] | +1.00 | 0.0078 of 1 | 0.10 / 0.20 | yes | ? |" in text
    assert "Rows labelled smoke: 1. They stand beside no number of the paper, and count as not run" in text
    assert "loss \\| is nan" in text
    assert {line["verdict"] for line in table(out / "paper.csv") if line["id"] == "spread_mnist"} == {
        "not comparable (recipe identical, the paper has defaults)"
    }


def test_without_a_paper_and_from_a_sweep_file(store, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = {"framework": "fake", "dataset": "synthetic", "architecture": "linear"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", "grid": grid, "store": {"tracking_uri": store}}))
    assert report.main([str(path)]) == 0
    assert "Beside the paper" not in capsys.readouterr().out
    folder = tmp_path / "mlruns" / "reports" / "mine"
    assert sorted(each.name for each in folder.iterdir()) == [
        "attacks.csv", "deployments.csv", "faults.csv", "flips.csv", "frameworks.csv", "matrix.csv", "not_ok.csv", "operators.csv", "pairs.csv",
        "report.md", "robustness.csv", "same_weights.csv", "steps.csv",
    ]
    path.write_text(yaml.safe_dump({"name": "mine", "grid": grid, "store": {"tracking_uri": store}, "paper": str(PAPER)}))
    assert report.main([str(path)]) == 0
    assert "Beside the paper" in capsys.readouterr().out


def test_a_row_half_written_is_left_out(store):
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("mine").experiment_id
    client.create_run(experiment, tags={"stage": "cell", "cell_key": "half"})
    assert len(recorded.read_sweep(store, "mine").rows) == len(ROWS) + 1


@pytest.mark.parametrize(("arguments", "message"), [
    (["mien"], "sweep: there is no sweep 'mien' in {store}; did you mean 'mine'?"),
    (["mine", "--store", "sqlite:////nowhere/mlflow.db"], "can't be used: there is no file /nowhere/mlflow.db"),
    (["none.yaml"], "sweep: can't read none.yaml: No such file or directory"),
    (["mine", "--paper", "none.yaml"], "sweep: can't read none.yaml: No such file or directory"),
    (["mine", "--out", "/proc/out"], "sweep: --out: the report can't be written to /proc/out"),
])
def test_clean_errors(store, capsys, arguments, message):
    chosen = arguments if "--store" in arguments else [*arguments, "--store", store]
    assert report.main(chosen) == 2
    said = capsys.readouterr().err
    assert message.format(store=store) in said
    assert said.count("\n") == 1


def test_to_read_makes_no_database(tmp_path, capsys):
    assert report.main(["mine", "--store", f"sqlite:///{tmp_path}/mlflow.db"]) == 2
    assert list(tmp_path.iterdir()) == []
