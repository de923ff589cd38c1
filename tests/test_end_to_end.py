"""Whole sweeps by the real command, with the fake framework and runtime: what MLflow holds, what is done once, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from mlflow.entities import Run
from sweeps import ENVIRONMENT, Command, Store, artifacts

from sweep.records import verify

PARAMS = {
    "framework", "framework_version", "dataset", "architecture", "recipe", "seed", "weights", "runtime", "runtime_version", "quantization",
    "device", "attack",
}
EVALUATED = {
    "accuracy", "source_accuracy", "disagreement", "logit_diff_p50", "logit_diff_p90", "logit_diff_p99", "logit_diff_max", "nan_outputs",
    "unique_predictions", "eval_n", "model_size_bytes", "train_seconds", "convert_seconds",
}
ATTACKED = {
    "attack_n", "robust_accuracy", "attack_success_rate", "perturbation_linf_mean", "perturbation_l2_mean", "attack_seconds",
}
MEASURED = {
    "latency_p50_ms", "latency_p95_ms", "latency_ratio", "first_call_ms", "load_ms", "throughput_per_s", "throughput_batch",
    "peak_memory_bytes",
}
TRAINED = {"train_loss", "train_accuracy", "validation_accuracy", "test_accuracy"}
BROKEN_SEED = 7
EPSILON = 0.25
"""Enough to flip some of what a linear model has learnt, which the metrics of a success need."""

GRIDS: list[dict[str, Any]] = [
    {"seed": [0, 1], "runtime": ["fake"], "quantization": ["float32", "dynamic_int8"], "attack": ["none", "fgsm"]},
    {"seed": [0], "runtime": ["native"], "attack": ["none", "fgsm"]},
    {"seed": [BROKEN_SEED], "runtime": ["fake"], "quantization": ["float32", "float16"]},
    {"architecture": ["lenet5"], "seed": [0], "runtime": ["fake"]},
]


def grid(**axes: Any) -> dict[str, Any]:
    return {"framework": ["fake"], "dataset": ["synthetic"], "architecture": ["linear"]} | axes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Store:
    return Store(tmp_path_factory.mktemp("store") / "store", cache)


@pytest.fixture(scope="module")
def config(store: Store) -> Path:
    return store.write(
        "main",
        grid=[grid(**axes) for axes in GRIDS],
        train={"epochs": 2},
        attack={"examples": 50},
        settings={"attack": {"fgsm": {"eps": EPSILON}}},
        options={"fake": {"faults": {"train": {str(BROKEN_SEED): "raise"}}}},
    )


@pytest.fixture(scope="module")
def planned(store: Store, config: Path) -> tuple[Command, int]:
    """`--plan` in an empty store, and how many runs it left there."""
    command = store.run(config, "--plan")
    return command, len(store.runs("stages")) + len(store.runs("main"))


class Done:
    """What the sweep has left, read before anything else writes to its store."""

    def __init__(self, store: Store, command: Command) -> None:
        self.command = command
        self.sweep = store.runs("main", stage="sweep")
        self.cells = store.cells("main")
        self.stages = {kind: store.stages(kind) for kind in ("train", "convert", "evaluate", "attack", "measure")}
        self.all_stages = store.runs("stages")
        self.plan = json.loads((artifacts(self.sweep[0]) / "plan.json").read_text())

    def cell(self, **params: Any) -> Run:
        """The one cell with these params."""
        (found,) = [cell for cell in self.cells.values() if all(cell.data.params[name] == str(value) for name, value in params.items())]
        return found


@pytest.fixture(scope="module")
def done(store: Store, config: Path, planned: tuple[Command, int]) -> Done:
    return Done(store, store.run(config))


def test_plan_starts_nothing(planned: tuple[Command, int]) -> None:
    command, runs = planned
    assert command.wait() == 0
    assert runs == 0
    # 8 cells of seeds 0 and 1 on the runtime, 2 on the framework itself, 1 of the broken seed; two skips
    assert "sweep main: 13 cells, 2 of them skipped" in command.output
    assert "train: 3 distinct, 0 done before, 3 new" in command.output
    assert "skipped 1: fake has no float16" in command.output
    assert "expected cost: unknown" in command.output


def test_a_failing_cell_makes_the_status_1(done: Done) -> None:
    assert done.command.wait() == 1
    assert "sweep main: 10 ok, 1 failed, 2 skipped; 13 rows are new" in done.command.output


def test_output_to_a_file_is_plain_lines(done: Done, store: Store) -> None:
    assert "\x1b" not in done.command.output
    lines = done.command.output.splitlines()
    label = f"fake linear synthetic defaults seed {BROKEN_SEED}"
    assert f"train of {label}: train_failed: RuntimeError: fault asked for with seed {BROKEN_SEED}" in lines
    assert any(line.startswith("train 2/3, evaluate") for line in lines)
    assert any(f"mlflow ui --backend-store-uri {store.uri}" in line for line in lines)


def test_one_sweep_run_holds_the_configuration_and_the_plan(done: Done) -> None:
    (sweep,) = done.sweep
    assert sweep.info.status == "FAILED"
    assert {name: value for name, value in sweep.data.metrics.items() if name.startswith("cells_")} == {
        "cells_ok": 10, "cells_failed": 1, "cells_skipped": 2,
    }
    assert {path.name for path in artifacts(sweep).iterdir()} == {"config.yaml", "plan.json", "data.json", "skipped.csv"}
    assert len(done.plan["cells"]) == 13


def test_cells_are_children_with_the_agreed_names(done: Done) -> None:
    (sweep,) = done.sweep
    for cell in done.cells.values():
        assert cell.data.tags["mlflow.parentRunId"] == sweep.info.run_id
        assert cell.data.params.keys() >= PARAMS
        assert {"status", "cell_key", "stage_keys", "git_commit"} <= cell.data.tags.keys()
        assert ("attack_eps" in cell.data.params) == (cell.data.params["attack"] == "fgsm")
    assert Counter(cell.data.tags["status"] for cell in done.cells.values()) == {"ok": 10, "failed": 1, "skipped": 2}


def test_metrics_are_those_of_what_was_measured_and_no_others(done: Done) -> None:
    plain = done.cell(seed=1, quantization="float32", attack="none")
    assert plain.data.metrics.keys() >= EVALUATED
    assert plain.data.metrics.keys().isdisjoint(ATTACKED | MEASURED | TRAINED)
    assert plain.data.metrics["eval_n"] == 400
    assert plain.data.metrics["logit_diff_max"] == 0  # the runtime computes as the framework does
    assert {"host", "threads"} <= plain.data.tags.keys()
    attacked = done.cell(seed=0, quantization="dynamic_int8", attack="fgsm")
    assert attacked.data.metrics.keys() >= EVALUATED | ATTACKED
    assert attacked.data.metrics.keys().isdisjoint(MEASURED | TRAINED)
    assert attacked.data.metrics["attack_n"] == 50
    assert attacked.data.tags["access"] == "transfer:same-weights"
    own = done.cell(runtime="native", attack="fgsm")
    assert "convert_seconds" not in own.data.metrics
    assert own.data.tags["access"] == "white-box"
    assert own.data.metrics["perturbation_linf_mean"] == pytest.approx(EPSILON, rel=1e-3)  # to the edge of its ball


def test_failed_and_skipped_cells_say_why_and_claim_nothing(done: Done) -> None:
    failed = done.cell(seed=BROKEN_SEED, quantization="float32")
    assert (failed.data.tags["status"], failed.data.tags["failure_class"]) == ("failed", "train_failed")
    assert failed.data.tags["message"] == f"RuntimeError: fault asked for with seed {BROKEN_SEED}"
    for skipped, reason in (
        (done.cell(quantization="float16"), "fake has no float16"),
        (done.cell(architecture="lenet5"), "lenet5 does not fit synthetic: conv2 reads windows of 5 from 2 x 2"),
    ):
        assert (skipped.data.tags["status"], skipped.data.tags["reason"]) == ("skipped", reason)
        assert not skipped.data.metrics
    assert not failed.data.metrics


def test_each_distinct_stage_ran_once(done: Done) -> None:
    distinct = Counter(stage["kind"] for stage in done.plan["stages"])
    assert distinct["train"] == 3
    assert len(done.stages["train"]) == 2  # and the broken one
    broken = {stage["key"] for stage in done.plan["stages"] if f"seed {BROKEN_SEED}" in stage["label"]}
    for kind in ("train", "convert", "evaluate", "attack"):
        wanted = {stage["key"] for stage in done.plan["stages"] if stage["kind"] == kind} - broken
        assert sorted(run.data.tags["key"] for run in done.stages[kind]) == sorted(wanted)
    assert {run.info.status for run in done.all_stages} == {"FINISHED", "FAILED"}


def test_training_curves_have_a_point_for_each_epoch(done: Done) -> None:
    for run in done.stages["train"]:
        assert run.data.metrics.keys() >= TRAINED
        curves = json.loads((artifacts(run) / "curves.json").read_text())
        assert [sorted(point) for point in curves] == [sorted(TRAINED)] * 2


def test_artifacts_are_there_and_are_what_was_recorded(done: Done) -> None:
    for run in done.all_stages:
        folder = artifacts(run)
        assert {"result.json", "log.txt", "manifest.json"} <= {path.name for path in folder.iterdir()}
        assert verify(folder, run.data.tags["digest"], content=True) is None
        assert json.loads((folder / "result.json").read_text())["result"]["status"] == run.data.tags["status"]


def test_outcomes_are_kept_for_each_example(done: Done) -> None:
    for run in done.stages["evaluate"]:
        table = pyarrow.parquet.read_table(artifacts(run) / "outcomes.parquet")
        assert set(table.column_names) == {"index", "label", "prediction", "margin"}
        hits = sum(a == b for a, b in zip(table["label"].to_pylist(), table["prediction"].to_pylist(), strict=True))
        assert hits / table.num_rows == run.data.metrics["accuracy"]
    for run in done.stages["attack"]:
        table = pyarrow.parquet.read_table(artifacts(run) / "outcomes.parquet")
        assert {"index", "label", "prediction", "margin", "prediction_before", "queries"} < set(table.column_names)
        assert table.num_rows == 50


def test_the_same_command_again_does_nothing_and_says_so(store: Store, config: Path, done: Done) -> None:
    again = store.run(config)
    assert again.wait() == 1
    assert "10 ok, 1 failed, 2 skipped; nothing new" in again.output
    assert "nothing new: every stage that can run was done before" in again.output
    assert {run.info.run_id for run in store.runs("stages")} == {run.info.run_id for run in done.all_stages}
    assert {run.info.run_id for run in store.cells("main").values()} == {run.info.run_id for run in done.cells.values()}
    assert len(store.runs("main", stage="sweep")) == 1


def test_a_grid_grown_by_one_value_runs_only_the_new_stages(store: Store, config: Path, done: Done) -> None:
    before = {run.info.run_id for run in store.runs("stages")}
    grown = f"grid.2.seed=[{BROKEN_SEED},2]"
    plan = store.run(config, "--plan", grown)
    assert "train: 4 distinct, 3 done before, 1 new" in plan.output
    assert "expected cost: about" in plan.output
    command = store.run(config, grown)
    assert command.wait() == 1
    assert "11 ok, 1 failed, 3 skipped; 2 rows are new" in command.output
    new = [run for run in store.runs("stages") if run.info.run_id not in before]
    # for seed 2: a training, an export and a deployment, the source's evaluation and the model's, and its diagnosis
    assert Counter(run.data.tags["stage"] for run in new) == {"train": 1, "convert": 2, "evaluate": 2, "diagnose": 1}
    assert all("seed 2" in run.info.run_name for run in new)


def test_another_sweep_reuses_what_it_shares_and_measures(store: Store, done: Done) -> None:
    """The two cells differ from those of the first sweep by their measurement alone."""
    before = store.finished()
    measured = store.write(
        "measured", grid=grid(seed=[0], runtime=["fake"], quantization=["dynamic_int8"]), train={"epochs": 2},
        measure={"reference": "fake", "blocks": 10}, options={"fake": {"faults": {"train": {str(BROKEN_SEED): "raise"}}}},
    )
    command = store.run(measured)
    assert command.wait() == 0
    assert "sweep measured: 1 ok, 0 failed, 0 skipped; 1 rows are new" in command.output
    (new,) = (store.finished() - before).elements()
    (stage,) = store.stages("measure")
    assert stage.data.tags["key"] == new
    (cell,) = store.cells("measured").values()
    assert cell.data.metrics.keys() >= EVALUATED | MEASURED
    assert cell.data.metrics["latency_p50_ms"] > 0
    assert ("energy_j" in cell.data.metrics) != cell.data.tags["energy"].startswith("not available")
    assert len(json.loads((artifacts(stage) / "samples.json").read_text())["candidate"]) == 3


@pytest.mark.parametrize("stop", [Command.interrupt, Command.terminate], ids=["ctrl-c", "sigterm"])
def test_a_stop_in_the_middle_is_clean_and_the_same_command_goes_on(tmp_path: Path, cache: Path, stop: Any) -> None:
    store = Store(tmp_path / "store", cache)
    config = store.write("stopped", grid=grid(seed=[0, 1], runtime=["fake"]), options={"fake": {"sleep_s": 1.0}})
    command = store.start(config)
    command.wait_until(store.finished)
    stop(command)
    assert command.wait() == 130
    assert "running stages are recorded as interrupted" in command.output
    assert "the same command goes on from here" in command.output
    assert not command.left_over()
    states = Counter(run.info.status for run in store.runs("stages"))
    assert 1 <= states["KILLED"] <= 2  # as many as there are slots
    assert not states["RUNNING"]
    (sweep,) = store.runs("stopped", stage="sweep")
    assert sweep.info.status == "KILLED"
    assert store.run(config).wait() == 0
    # 2 trainings, 2 exports, 2 deployments, 2 evaluations of the source and 2 of the model, and 2 diagnoses of it
    assert store.finished().total() == len(store.finished()) == 12
    assert {run.data.tags["status"] for run in store.cells("stopped").values()} == {"ok"}


def test_a_second_driver_says_so_and_leaves(tmp_path: Path, cache: Path) -> None:
    store = Store(tmp_path / "store", cache)
    config = store.write("held", grid=grid(seed=[0], runtime=["native"]), options={"fake": {"faults": {"train": {"0": "hang"}}}})
    first = store.start(config)
    first.wait_until(lambda: "expected cost" in first.output)
    second = store.run(config)
    assert second.wait() == 2
    assert f"in use by another driver (sweep held, process {first.pid})" in second.output
    assert not store.runs("held", stage="cell")
    first.interrupt()
    assert first.wait() == 130
    assert not first.left_over()


def test_every_way_to_die_is_one_cells_failure(tmp_path: Path, cache: Path) -> None:
    faults = {"1": "segfault", "2": "abort", "3": "raise", "4": "nan", "5": "hang_with_child", "6": "hog", "7": "exit"}
    store = Store(tmp_path / "store", cache)
    config = store.write(
        "faults", grid=grid(seed=list(range(9)), runtime=["native"]), options={"fake": {"faults": {"train": faults}}},
        limits={"seconds": {"train": 2.0}, "memory_gb": 1.0},
    )
    command = store.run(config)
    assert command.wait() == 1
    classes = {cell.data.params["seed"]: cell.data.tags.get("failure_class", "ok") for cell in store.cells("faults").values()}
    assert classes == {
        "0": "ok", "1": "crash_signal", "2": "crash_signal", "3": "train_failed", "4": "diverged", "5": "timeout", "6": "oom_host",
        "7": "crash_signal", "8": "ok",
    }
    assert "SIGSEGV" in message(store, 1)
    assert "SIGABRT" in message(store, 2)
    assert "status 3" in message(store, 7)
    attempts = Counter(run.data.tags["mlflow.runName"].split()[-1] for run in store.stages("train", "FAILED"))
    assert attempts == {"1": 1, "2": 1, "3": 1, "4": 1, "5": 2, "6": 1, "7": 1}  # a time-out may be the machine's fault


def message(store: Store, seed: int) -> str:
    (cell,) = [cell for cell in store.cells("faults").values() if cell.data.params["seed"] == str(seed)]
    return cell.data.tags["message"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A Ray cluster of this machine alone; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    temporary = Path(f"/tmp/sweep-test-ray-{port}")  # Ray's sockets need a short path
    options = ["--head", "--block", f"--port={port}", "--num-cpus=2", f"--temp-dir={temporary}", "--include-dashboard=false"]
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--disable-usage-stats", "--object-store-memory=100000000"],
        env=os.environ | ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(30)


def test_a_sweep_joins_a_running_cluster(tmp_path: Path, cache: Path, cluster: str) -> None:
    store = Store(tmp_path / "store", cache)
    config = store.write("joined", grid=grid(seed=[0], runtime=["fake"]))
    command = store.run(config, "--address", cluster)
    assert command.wait() == 0, command.output
    assert f"joined the Ray cluster at {cluster}: 2 CPUs on 1 nodes" in command.output
    assert "sweep joined: 1 ok, 0 failed, 0 skipped" in command.output
