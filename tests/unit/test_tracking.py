"""The tracker on a real database: what runs look like, in which order they are written, and what counts."""

import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from sweep import artifacts, tracking
from sweep.errors import StoreUnavailable
from sweep.records import CellRecord, Result, local_folder, write_manifest
from sweep.tracking import Tracker


@pytest.fixture
def open_tracker(database):
    """A tracker on the test's store, as another process would open it."""

    def make(sweep="mine", owner="me"):
        return Tracker(f"sqlite:///{database}", database.parent.joinpath("artifacts").as_uri(), sweep, owner)

    return make


@pytest.fixture
def tracker(open_tracker):
    made = open_tracker()
    assert made.scan() == {}
    return made


@pytest.fixture
def client(database):
    return MlflowClient(f"sqlite:///{database}")


@pytest.fixture
def stage_files(tmp_path):
    """Writes the files of an attempt, and returns its result."""

    def make(attempt, key="k", kind="train", content=b"weights", **fields):
        folder = tmp_path / "work" / attempt
        (folder / "saved").mkdir(parents=True)
        (folder / "saved" / "model.bin").write_bytes(content)
        (folder / "log.txt").write_text("log\n")
        digest = write_manifest(folder)
        own = {"status": "ok", "digest": digest, "folder": str(folder), "seconds": 2.5, "ended": 1700000000.25}
        return Result(key, kind, attempt, **(own | fields))

    return make


def runs(client, experiment, view=ViewType.ACTIVE_ONLY):
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id], run_view_type=view)


def committed(tracker, result, **params):
    tracker.open_stage(result.attempt, result.key, result.kind, f"{result.kind} label", params)
    tracker.commit_stage(result)
    return result


def test_the_run_of_a_stage(tracker, client, database, stage_files):
    result = stage_files(
        "attempt-1", metrics={"train_seconds": 2.0, "train_examples": 100}, facts={"host": "here", "read_model": "d0"},
        curves=[
            {"train_loss": 2.0, "test_accuracy": 0.5},
            {"train_loss": 1.0, "test_accuracy": 0.75},
            {"train_loss": 0.5, "test_accuracy": 0.7},
        ],
    )
    committed(tracker, result, framework="pytorch", dataset="mnist")
    (run,) = runs(client, "stages")
    folder = database.parent / "artifacts" / "stages" / run.info.run_id / "artifacts"
    assert run.info.status == "FINISHED"
    assert run.info.end_time == 1700000000250
    assert run.data.params == {"framework": "pytorch", "dataset": "mnist"}
    assert {name: value for name, value in run.data.tags.items() if not name.startswith("mlflow.")} == {
        "stage": "train", "key": "k", "attempt": "attempt-1", "owner": "me", "sweep": "mine", "status": "ok", "digest": result.digest,
        "location": folder.as_uri(), "fact.host": "here", "fact.read_model": "d0",
    }
    assert run.info.run_name == "train label"
    assert run.data.metrics == {
        "train_seconds": 2.0, "train_examples": 100.0, "stage_seconds": 2.5, "train_loss": 0.5, "test_accuracy": 0.7,
    }
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert [(point.step, point.value) for point in history] == [(0, 2.0), (1, 1.0), (2, 0.5)]
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        "log.txt", "manifest.json", "saved/model.bin",
    ]


def test_what_a_later_start_finds(tracker, open_tracker, stage_files):
    result = committed(tracker, stage_files("1", metrics={"accuracy": 0.5}, facts={"backend": "pytorch"}))
    found = open_tracker("another sweep", "another owner").scan()
    assert found.keys() == {"k"}
    record = found["k"]
    assert (record.kind, record.status, record.digest, record.seconds) == ("train", "ok", result.digest, 2.5)
    assert (record.metrics, record.facts) == ({"accuracy": 0.5, "stage_seconds": 2.5}, {"backend": "pytorch"})
    assert tracker.missing(record.uri, record.digest) is None


def test_artifacts_are_hard_links_and_stay_when_the_work_folder_goes(tracker, client, stage_files):
    result = committed(tracker, stage_files("1"))
    (run,) = runs(client, "stages")
    placed = local_folder(run.info.artifact_uri) / "saved" / "model.bin"
    assert placed.stat().st_ino == (Path(result.folder) / "saved" / "model.bin").stat().st_ino
    shutil.rmtree(result.folder)
    assert placed.read_bytes() == b"weights"
    assert tracker.missing(run.info.artifact_uri, result.digest) is None


def test_where_there_are_no_hard_links_files_are_copied(tracker, client, stage_files, monkeypatch):
    def refuse(*_arguments):
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    result = committed(tracker, stage_files("1"))
    (run,) = runs(client, "stages")
    placed = local_folder(run.info.artifact_uri) / "saved" / "model.bin"
    assert placed.read_bytes() == b"weights"
    assert placed.stat().st_ino != (Path(result.folder) / "saved" / "model.bin").stat().st_ino


class Told:
    """A client that notes what it is asked for, and at one of these fails."""

    def __init__(self, client, noted, fails=None):
        self._client, self._noted, self._fails = client, noted, fails

    def __getattr__(self, name):
        def call(*arguments, **named):
            self._noted.append(name)
            if name == self._fails:
                raise MlflowException("away for a moment")
            return getattr(self._client, name)(*arguments, **named)

        return call


def test_a_commit_goes_in_the_order_that_makes_it_safe(tracker, stage_files, monkeypatch):
    result = stage_files("1", curves=[{"train_loss": 1.0}])
    tracker.open_stage("1", "k", "train", "label", {})
    noted = []
    monkeypatch.setattr(tracker, "_client", Told(tracker._client, noted))
    place = artifacts.place
    monkeypatch.setattr(artifacts, "place", lambda *arguments: (noted.append("place"), place(*arguments)))
    missing = tracker.missing
    monkeypatch.setattr(tracker, "missing", lambda *arguments: (noted.append("verify"), missing(*arguments))[1])
    tracker.commit_stage(result)
    assert noted == ["place", "verify", "log_batch", "set_terminated"]


@pytest.mark.parametrize("step", ["place", "log_batch", "set_terminated"])
def test_a_commit_that_is_cut_off_anywhere_does_not_count(tracker, open_tracker, client, stage_files, monkeypatch, step):
    result = stage_files("1", metrics={"accuracy": 0.5}, curves=[{"train_loss": 1.0}, {"train_loss": 0.5}])
    tracker.open_stage("1", "k", "train", "label", {})
    with monkeypatch.context() as broken:
        if step == "place":
            broken.setattr(artifacts, "place", lambda *_arguments: None)
        else:
            broken.setattr(tracker, "_client", Told(tracker._client, [], step))
        with pytest.raises((MlflowException, OSError), match=r"away|did not arrive"):
            tracker.commit_stage(result)
    assert open_tracker(owner="later").scan() == {}
    tracker.commit_stage(result)  # delivered again
    assert open_tracker(owner="later").scan().keys() == {"k"}
    (run,) = runs(client, "stages")
    assert run.data.metrics == {"accuracy": 0.5, "train_loss": 0.5, "stage_seconds": 2.5}
    assert [point.step for point in client.get_metric_history(run.info.run_id, "train_loss")] == [0, 1]


def test_damaged_artifacts_do_not_arrive(tracker, stage_files, open_tracker):
    result = stage_files("1")
    (Path(result.folder) / "saved" / "model.bin").write_bytes(b"half")
    tracker.open_stage("1", "k", "train", "label", {})
    with pytest.raises(OSError, match=r"artifacts did not arrive: .*model.bin has changed"):
        tracker.commit_stage(result)
    assert open_tracker(owner="later").scan() == {}


def test_a_stage_whose_files_are_gone_is_refused_for_good(tracker, stage_files):
    result = stage_files("1")
    shutil.rmtree(result.folder)
    tracker.open_stage("1", "k", "train", "label", {})
    with pytest.raises(ValueError, match="the files of train k are gone"):
        tracker.commit_stage(result)


def test_artifacts_that_were_lost_or_changed_do_not_count(tracker, client, stage_files):
    result = committed(tracker, stage_files("1"))
    (run,) = runs(client, "stages")
    uri, folder = run.info.artifact_uri, local_folder(run.info.artifact_uri)
    assert "holds other files" in tracker.missing(uri, "another digest")
    (folder / "saved" / "model.bin").write_bytes(b"changed")
    assert tracker.missing(uri, result.digest) is None  # of the same size; the content is compared where it is read
    (folder / "saved" / "model.bin").write_bytes(b"changed more")
    assert tracker.missing(uri, result.digest) == f"{folder / 'saved' / 'model.bin'} has changed"
    (folder / "saved" / "model.bin").unlink()
    assert tracker.missing(uri, result.digest) == f"{folder / 'saved' / 'model.bin'} is missing"
    shutil.rmtree(folder)
    assert "no readable manifest" in tracker.missing(uri, result.digest)


class Remote:
    """The artifacts of a folder, as a repository that is not on this machine gives them."""

    def __init__(self, folder):
        self._folder = folder

    def download_artifacts(self, name, to):
        return shutil.copy(self._folder / name, to)

    def list_artifacts(self):
        return [
            SimpleNamespace(path=path.name, is_dir=path.is_dir(), file_size=None if path.is_dir() else path.stat().st_size)
            for path in self._folder.iterdir()
        ]


def test_artifacts_elsewhere_are_compared_with_their_manifest(tracker, tmp_path, monkeypatch):
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    (folder / "log.txt").write_text("log\n")
    digest = write_manifest(folder)
    monkeypatch.setattr(tracking, "get_artifact_repository", lambda _uri: Remote(folder))
    assert tracker.missing("s3://runs/1", digest) is None
    assert tracker.missing("s3://runs/1", "another") == "s3://runs/1 holds other files than were recorded"
    with (folder / "log.txt").open("a") as log:
        log.write("the last words of a warm worker\n")
    assert tracker.missing("s3://runs/1", digest) is None
    (folder / "model.bin").write_bytes(b"half")
    assert tracker.missing("s3://runs/1", digest) == "s3://runs/1: model.bin is missing or changed"
    (folder / "model.bin").unlink()
    assert tracker.missing("s3://runs/1", digest) == "s3://runs/1: model.bin is missing or changed"
    (folder / "manifest.json").unlink()
    assert tracker.missing("s3://runs/1", digest).startswith("s3://runs/1 has no readable manifest.json: ")


def test_files_that_a_node_uploaded_are_verified_too(tracker, open_tracker, stage_files):
    result = stage_files("1")
    _run, uri = tracker.open_stage("1", "k", "train", "label", {})
    with pytest.raises(OSError, match="artifacts did not arrive"):
        tracker.commit_stage(replace(result, folder=None))
    assert open_tracker(owner="later").scan() == {}
    shutil.copytree(result.folder, local_folder(uri), dirs_exist_ok=True)
    tracker.commit_stage(replace(result, folder=None))
    assert open_tracker(owner="later").scan().keys() == {"k"}


def test_a_stage_that_runs_does_not_count(tracker, open_tracker):
    tracker.open_stage("1", "k", "train", "label", {})
    assert open_tracker(owner="later").scan() == {}


def test_the_run_of_a_failed_stage(tracker, open_tracker, client, stage_files):
    committed(tracker, stage_files("1", status="failed", failure_class="diverged", message="the loss of epoch 1 is nan"))
    (run,) = runs(client, "stages")
    assert run.info.status == "FAILED"
    assert {name: run.data.tags[name] for name in ("status", "failure_class", "message")} == {
        "status": "failed", "failure_class": "diverged", "message": "the loss of epoch 1 is nan",
    }
    record = open_tracker().scan()["k"]
    assert (record.status, record.failure_class, record.message) == ("failed", "diverged", "the loss of epoch 1 is nan")


def test_of_several_records_of_a_stage_the_latest_counts(tracker, open_tracker, stage_files):
    committed(tracker, stage_files("1", status="failed", failure_class="timeout"))
    second = committed(tracker, stage_files("2", content=b"other weights"))
    assert open_tracker().scan()["k"].digest == second.digest


def test_a_repeated_request_changes_nothing(tracker, open_tracker, client, stage_files):
    """As it comes from a driver whose tracker was killed before it answered."""
    result = committed(tracker, stage_files("1"), framework="pytorch")
    again = open_tracker()
    again.scan()
    assert again.open_stage("1", "k", "train", "train label", {"framework": "pytorch"}) == tracker._runs["1"]
    again.commit_stage(result)
    (run,) = runs(client, "stages")
    assert run.info.status == "FINISHED"


def test_a_commit_of_an_attempt_that_was_never_opened(tracker, client, stage_files):
    tracker.commit_stage(stage_files("1"))
    (run,) = runs(client, "stages")
    assert (run.info.status, run.data.tags["attempt"], run.data.tags["stage"]) == ("FINISHED", "1", "train")


def test_interrupted_and_stale_stages(tracker, open_tracker, client, stage_files):
    tracker.open_stage("1", "a", "train", "label", {})
    tracker.open_stage("2", "b", "train", "label", {})
    committed(tracker, stage_files("3", key="c"))
    other = open_tracker("other")
    other.open_stage("4", "d", "train", "label", {})
    tracker.interrupt_stage("1")
    assert open_tracker(owner="later").retire_stale() == 1  # the second; the fourth is another sweep's
    state = {run.data.tags["attempt"]: (run.info.status, run.data.tags.get("status")) for run in runs(client, "stages")}
    assert state == {"1": ("KILLED", "interrupted"), "2": ("KILLED", "interrupted"), "3": ("FINISHED", "ok"), "4": ("RUNNING", None)}
    assert open_tracker(owner="later").scan().keys() == {"c"}


def test_a_new_process_of_the_same_driver_can_interrupt_what_the_old_one_opened(tracker, open_tracker, client):
    tracker.open_stage("1", "a", "train", "label", {})
    again = open_tracker()
    again.scan()
    again.interrupt_stage("1")
    (run,) = runs(client, "stages")
    assert run.info.status == "KILLED"


ROW = {
    "key": "c1", "name": "pytorch-mnist", "params": {"framework": "pytorch", "dataset": "mnist", "seed": 0, "attack_eps": 0.3},
    "tags": {"status": "ok", "git_commit": "abc", "host": "here", "threads": "1", "access": "white-box"},
    "metrics": {"accuracy": 0.99, "latency_p50_ms": 1.5}, "stages": ["k1", "k2"],
}


def row(**changes):
    return CellRecord(**(ROW | changes))


@pytest.fixture
def swept(tracker, stage_files):
    """A tracker with an open sweep and two finished stages."""
    committed(tracker, stage_files("1", key="k1"))
    committed(tracker, stage_files("2", key="k2"))
    tracker.open_sweep("name: mine\n", {"stages": []}, {"mnist": {"kind": "idx"}})
    return tracker


def cells(client, view=ViewType.ACTIVE_ONLY):
    return [run for run in runs(client, "mine", view) if run.data.tags["stage"] == "cell"]


def test_the_row_of_a_cell(swept, client):
    assert swept.write_cell(row()) is True
    (run,) = cells(client)
    (parent,) = [run for run in runs(client, "mine") if run.data.tags["stage"] == "sweep"]
    stage_runs = {run.data.tags["key"]: run.info.run_id for run in runs(client, "stages")}
    assert run.info.status == "FINISHED"
    assert run.data.params == {"framework": "pytorch", "dataset": "mnist", "seed": "0", "attack_eps": "0.3"}
    assert run.data.metrics == {"accuracy": 0.99, "latency_p50_ms": 1.5}
    tags = {name: value for name, value in run.data.tags.items() if name != "content"}
    assert {name: value for name, value in tags.items() if not name.startswith("mlflow.")} == ROW["tags"] | {
        "stage": "cell", "cell_key": "c1", "stage_keys": "k1,k2", "stage_runs": f"{stage_runs['k1']},{stage_runs['k2']}",
    }
    assert tags["mlflow.parentRunId"] == parent.info.run_id
    assert run.info.run_name == "pytorch-mnist"


def test_a_row_that_stands_there_is_not_written_again(swept, open_tracker, client):
    swept.write_cell(row())
    (before,) = cells(client)
    assert swept.write_cell(row()) is False
    assert swept.write_cell(row(tags=ROW["tags"] | {"git_commit": "def"})) is False
    later = open_tracker(owner="later")
    later.scan()
    assert later.write_cell(row()) is False
    assert [run.info.run_id for run in cells(client, ViewType.ALL)] == [before.info.run_id]


@pytest.mark.parametrize("change", [
    {"metrics": ROW["metrics"] | {"accuracy": 0.98}},
    {"metrics": {"accuracy": 0.99}},
    {"params": ROW["params"] | {"framework_version": "2"}},
    {"tags": ROW["tags"] | {"host": "there"}},
    {"tags": {"status": "failed", "failure_class": "timeout"}},
    {"stages": ["k1"]},
])
def test_a_row_with_other_content_takes_the_place_of_the_old_one(swept, open_tracker, client, change):
    swept.write_cell(row())
    (old,) = cells(client)
    later = open_tracker(owner="later")
    later.scan()
    later.open_sweep("", {}, {})
    assert later.write_cell(row(**change)) is True
    (new,) = cells(client)
    assert new.info.run_id != old.info.run_id
    assert new.info.status == ("FAILED" if change.get("tags", {}).get("status") == "failed" else "FINISHED")
    superseded = client.get_run(old.info.run_id)
    assert superseded.info.lifecycle_stage == "deleted"
    assert superseded.data.tags["superseded_by"] == new.info.run_id
    assert superseded.data.metrics == ROW["metrics"]


def test_a_row_makes_the_one_obsolete_that_said_it_could_not_be_run(swept, open_tracker, client):
    swept.write_cell(row(key="without a version", tags={"status": "skipped", "reason": "env_unavailable"}, metrics={}, stages=[]))
    (old,) = cells(client)
    later = open_tracker(owner="later")
    later.scan()
    later.open_sweep("", {}, {})
    assert later.write_cell(row(replaces="without a version")) is True
    (new,) = cells(client)
    assert new.data.tags["status"] == "ok"
    assert client.get_run(old.info.run_id).data.tags["superseded_by"] == new.info.run_id


def test_a_row_follows_the_runs_of_its_stages(swept, client, stage_files):
    """The same figures from a training that was done again are another provenance."""
    swept.write_cell(row())
    committed(swept, stage_files("3", key="k1"))
    assert swept.write_cell(row()) is True
    assert len(cells(client)) == 1


@pytest.mark.parametrize("step", ["log_batch", "set_terminated", "set_tag", "delete_run"])
def test_a_row_that_was_cut_off_anywhere_is_whole_after_the_next_start(swept, open_tracker, client, monkeypatch, step):
    swept.write_cell(row())
    changed = row(metrics={"accuracy": 0.5})
    with monkeypatch.context() as broken:
        broken.setattr(swept, "_client", Told(swept._client, [], step))
        with pytest.raises(MlflowException):
            swept.write_cell(changed)
    later = open_tracker()
    later.scan()
    later.write_cell(changed)
    (run,) = cells(client)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"accuracy": 0.5})
    assert run.data.params == {name: str(value) for name, value in ROW["params"].items()}


def test_the_run_of_a_sweep_is_one_for_all_starts(tracker, open_tracker, client):
    run_id = tracker.open_sweep("name: mine\n", {"cells": [1]}, {"mnist": {"digest": "d"}})
    assert client.get_run(run_id).info.status == "RUNNING"
    tracker.log_table("skipped.csv", "framework,reason\n")
    tracker.close_sweep("FINISHED", {"cells_ok": 3.0, "cells_failed": 0.0})
    later = open_tracker(owner="later")
    later.scan()
    assert later.open_sweep("name: mine\nthreads: 2\n", {"cells": [2]}, {}) == run_id
    assert client.get_run(run_id).info.status == "RUNNING"
    later.close_sweep("FAILED", {"cells_ok": 2.0, "cells_failed": 1.0})
    (run,) = runs(client, "mine")
    assert (run.info.status, run.data.metrics) == ("FAILED", {"cells_ok": 2.0, "cells_failed": 1.0})
    assert run.data.tags["stage"] == "sweep"
    folder = local_folder(run.info.artifact_uri)
    assert (folder / "config.yaml").read_text() == "name: mine\nthreads: 2\n"
    assert json.loads((folder / "plan.json").read_text()) == {"cells": [2]}
    assert (folder / "skipped.csv").read_text() == "framework,reason\n"


def test_stores_that_can_not_be_used(tmp_path, tracker, client, open_tracker):
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(StoreUnavailable, match=r"store.tracking_uri: 'sqlite:.*text.db' can't be used: file is not a database"):
        Tracker(f"sqlite:///{tmp_path}/text.db", None, "mine", "me")
    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        Tracker(f"sqlite:///{tmp_path}", None, "mine", "me")
    client.delete_experiment(tracker.experiment())
    with pytest.raises(StoreUnavailable, match="the experiment 'mine' is deleted in MLflow; restore it, or choose another name"):
        open_tracker()


def test_leases(tracker, open_tracker):
    assert tracker.get_lease() == ""
    tracker.set_lease("me 123")
    assert open_tracker(owner="later").get_lease() == "me 123"
    assert open_tracker("other").get_lease() == "me 123"  # the store's, not the sweep's


def test_a_new_database_is_read_while_it_is_written(tmp_path):
    tracking._create_database(f"sqlite:///{tmp_path}/new/mlflow.db")
    assert (tmp_path / "new" / "mlflow.db").read_bytes()[18:20] == b"\2\2"  # the file's own mark of write-ahead logging


def test_artifacts_are_fetched_whole_and_once(tracker, client, stage_files, tmp_path):
    result = committed(tracker, stage_files("1"))
    (run,) = runs(client, "stages")
    folder = tmp_path / "fetched" / result.digest
    threads = [threading.Thread(target=artifacts.fetch, args=(run.info.artifact_uri, folder)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / "saved" / "model.bin").read_bytes() == b"weights"
    assert [path.name for path in folder.parent.iterdir()] == [result.digest]
