"""The one writer to MLflow: what a run of a stage, a cell and a sweep look like, and when one counts as finished.

A stage's run is opened when the stage starts, and committed in this order: artifacts placed and verified, then metrics and tags, then
the run's end. Only an ended run whose artifacts are there with the recorded digest counts, so a driver that dies between two of these
steps leaves a run that is retired and work that is done again, never a record that promises more than there is.
"""

import contextlib
import hashlib
import json
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Experiment, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository
from mlflow.tracking import MlflowClient

from sweep import artifacts
from sweep.axes import STAGES_EXPERIMENT
from sweep.errors import StoreUnavailable
from sweep.recorded import PAGE, each_run, reachable
from sweep.records import FAILED, UNDIGESTED, CellRecord, Finished, Result, local_folder, manifest_digest, verify

PARENT = "mlflow.parentRunId"
FACT = "fact."
BATCH_METRICS = 900
SHOWN_AS = {"mlflow.experimentKind": "custom_model_development"}
"""What the MLflow UI shows an experiment as: tables of runs with params and metrics, rather than traces of language models."""


class Tracker:
    """The one writer to MLflow, for one sweep. Not for several threads."""

    def __init__(self, tracking_uri: str, artifacts: str | None, sweep: str, owner: str) -> None:
        """Raises StoreUnavailable."""
        self._uri = tracking_uri
        self._owner = owner
        self._sweep = sweep
        self._runs: dict[str, tuple[str, str]] = {}  # attempt -> run id, artifact URI
        self._finished_runs: dict[str, str] = {}  # stage key -> run id
        self._cells: dict[str, tuple[list[str], str]] = {}  # cell key -> run ids, the latest last, and the content of that one
        self._sweep_run = ""
        with reachable(tracking_uri):
            _create_database(tracking_uri)
            self._client = MlflowClient(tracking_uri)
            self._stages = _experiment(self._client, STAGES_EXPERIMENT, artifacts)
            self._found = _active(self._client, sweep)  # whoever only reads leaves no empty one behind
        self._artifacts_root = artifacts

    @property
    def _experiment(self) -> Experiment:
        if self._found is None:
            self._found = _experiment(self._client, self._sweep, self._artifacts_root)
        return self._found

    def experiment(self) -> str:
        """The id of the sweep's experiment, as the UI's addresses have it."""
        return str(self._experiment.experiment_id)

    def scan(self) -> dict[str, Finished]:
        """Every finished stage of the store by key, in one pass; the latest record of a key wins."""
        found: dict[str, Finished] = {}
        for run in each_run(self._client, self._stages):
            tags = run.data.tags
            if "attempt" in tags:
                self._runs[tags["attempt"]] = (run.info.run_id, self._artifacts(run))
            if run.info.status not in ("FINISHED", "FAILED") or "key" not in tags or "status" not in tags:
                continue
            record = _finished(run, self._artifacts(run))
            found[record.key] = record
            self._finished_runs[record.key] = run.info.run_id
        self._cells.clear()
        for run in each_run(self._client, self._found) if self._found else ():
            tags = run.data.tags
            if tags.get("stage") == "sweep":
                self._sweep_run = run.info.run_id
            elif tags.get("stage") == "cell":
                earlier, _content_of_earlier = self._cells.get(tags["cell_key"], ([], ""))
                content = tags.get("content", "") if run.info.status != "RUNNING" else ""  # a row half written says nothing
                self._cells[tags["cell_key"]] = ([*earlier, run.info.run_id], content)
        return found

    def retire_stale(self) -> int:
        """End the runs that an earlier driver of this sweep left open; how many there were. For the start alone, when nothing runs."""
        own = f"attributes.status = 'RUNNING' and tags.sweep = '{self._sweep}'"
        stale = self._client.search_runs([self._stages.experiment_id], own, max_results=PAGE)
        for run in stale:
            self._retire(run.info.run_id)
        return len(stale)

    def missing(self, uri: str, digest: str) -> str | None:
        """Why a finished stage's artifacts can't be used, None if they can."""
        folder = local_folder(uri)
        if folder is not None:
            return verify(folder, digest, content=False)
        repository = get_artifact_repository(uri)
        try:
            with tempfile.TemporaryDirectory() as temporary:
                files = json.loads(Path(repository.download_artifacts("manifest.json", temporary)).read_text())
        except (MlflowException, OSError, ValueError) as error:
            return f"{uri} has no readable manifest.json: {' '.join(str(error).split())[:200]}"
        if manifest_digest(files) != digest:
            return f"{uri} holds other files than were recorded"
        sizes = {item.path: item.file_size for item in repository.list_artifacts() if not item.is_dir}
        there = {name: size for name, (size, _sha256) in files.items() if "/" not in name and name not in UNDIGESTED}
        changed = [name for name, size in there.items() if sizes.get(name) != size]
        return f"{uri}: {changed[0]} is missing or changed" if changed else None

    def open_stage(
        self, attempt: str, key: str, kind: str, label: str, params: Mapping[str, Any], started: float | None = None
    ) -> tuple[str, str]:
        """The run of a stage that started then (a time stamp; None is now): its id and where its artifacts go. May be called again."""
        if attempt not in self._runs:
            tags = {"stage": kind, "key": key, "attempt": attempt, "owner": self._owner, "sweep": self._sweep, "mlflow.runName": label}
            at = None if started is None else int(started * 1000)
            run = self._client.create_run(self._stages.experiment_id, start_time=at, tags=tags, run_name=label)
            self._runs[attempt] = (run.info.run_id, self._artifacts(run))
        if params:
            self._client.log_batch(self._runs[attempt][0], params=[Param(name, str(value)) for name, value in params.items()])
        return self._runs[attempt]

    def commit_stage(self, result: Result) -> None:
        """Record a stage that has ended. Raises MlflowException or OSError where the store can't take it, and may be called again."""
        run_id, uri = self._runs.get(result.attempt) or self._reopen(result)
        if result.key in self._finished_runs and self._finished_runs[result.key] == run_id:
            return  # a repeated delivery
        if result.folder is not None:
            if not Path(result.folder).is_dir():
                raise ValueError(f"the files of {result.kind} {result.key} are gone: {result.folder}")
            artifacts.place(Path(result.folder), uri, self._client, run_id)
        if result.ok and (reason := self.missing(uri, result.digest)):
            raise OSError(f"artifacts did not arrive: {reason}")
        at = int(result.ended * 1000)
        metrics = [Metric(name, value, at, 0) for name, value in (dict(result.metrics) | {"stage_seconds": result.seconds}).items()]
        metrics += [Metric(name, value, at, step) for step, point in enumerate(result.curves) for name, value in point.items()]
        tags = {"status": result.status, "digest": result.digest, "location": uri}
        tags |= {FACT + name: value for name, value in result.facts.items()}
        if not result.ok:
            tags |= {"failure_class": result.failure_class, "message": result.message}
        for start in range(0, max(len(metrics), 1), BATCH_METRICS):
            chosen = [RunTag(name, str(value)[:5000]) for name, value in tags.items()] if start == 0 else []
            self._client.log_batch(run_id, metrics=metrics[start : start + BATCH_METRICS], tags=chosen)
        self._client.set_terminated(run_id, "FINISHED" if result.ok else "FAILED", end_time=at)
        self._finished_runs[result.key] = run_id

    def interrupt_stage(self, attempt: str) -> None:
        """Record that a stage was stopped before its end."""
        if attempt in self._runs:
            self._retire(self._runs[attempt][0])

    def open_sweep(self, config: str, plan: Mapping[str, Any], data: Mapping[str, Any]) -> str:
        """The sweep's one run, opened again by every later start; its id. After `scan`."""
        if self._sweep_run:
            self._client.update_run(self._sweep_run, status="RUNNING")
        else:
            tags = {"stage": "sweep", "mlflow.runName": self._sweep}
            self._sweep_run = self._client.create_run(self._experiment.experiment_id, tags=tags).info.run_id
        self._client.log_text(self._sweep_run, config, "config.yaml")
        self._client.log_dict(self._sweep_run, dict(plan), "plan.json")
        self._client.log_dict(self._sweep_run, dict(data), "data.json")
        return self._sweep_run

    def close_sweep(self, status: str, counts: Mapping[str, float]) -> None:
        """End the sweep's run with a status of MLflow and the number of cells by outcome."""
        at = int(time.time() * 1000)
        self._client.log_batch(self._sweep_run, metrics=[Metric(name, value, at, 0) for name, value in counts.items()])
        self._client.set_terminated(self._sweep_run, status)

    def set_lease(self, value: str) -> None:
        """Who writes to this store, and until when unless renewed."""
        self._client.set_experiment_tag(self._stages.experiment_id, "lease", value)

    def get_lease(self) -> str:
        return self._client.get_experiment(self._stages.experiment_id).tags.get("lease", "")

    def log_table(self, name: str, text: str) -> None:
        """A table of rows that are too many for runs of their own, as a file of the sweep's run."""
        self._client.log_text(self._sweep_run, text, name)

    def write_cell(self, record: CellRecord) -> bool:
        """One row of the table, unless it stands there already; a row with other content is marked superseded and leaves the table."""
        links = {key: self._finished_runs[key] for key in record.stages if key in self._finished_runs}
        digest = _content(record, links)
        earlier, content = self._cells.get(record.key, ([], ""))
        replaced, _content_of_replaced = self._cells.pop(record.replaces, ([], ""))
        if content == digest:
            *earlier, run_id = earlier
        else:
            run_id = self._write_row(record, links, digest)
        for superseded in [*replaced, *earlier]:
            self._client.set_tag(superseded, "superseded_by", run_id)
            self._client.delete_run(superseded)
        self._cells[record.key] = ([run_id], digest)
        return content != digest

    def _write_row(self, record: CellRecord, links: Mapping[str, str], digest: str) -> str:
        tags = {"stage": "cell", "cell_key": record.key, PARENT: self._sweep_run, "mlflow.runName": record.name, "content": digest}
        tags |= {"stage_keys": ",".join(record.stages), "stage_runs": ",".join(links.values())} | dict(record.tags)
        run = self._client.create_run(self._experiment.experiment_id, tags={name: str(value)[:5000] for name, value in tags.items()})
        at = int(time.time() * 1000)
        self._client.log_batch(
            run.info.run_id,
            metrics=[Metric(name, value, at, 0) for name, value in record.metrics.items()],
            params=[Param(name, str(value)) for name, value in record.params.items()],
        )
        self._client.set_terminated(run.info.run_id, "FAILED" if record.tags["status"] == FAILED else "FINISHED")
        return str(run.info.run_id)

    def _retire(self, run_id: str) -> None:
        self._client.set_tag(run_id, "status", "interrupted")
        self._client.set_terminated(run_id, "KILLED")

    def _reopen(self, result: Result) -> tuple[str, str]:
        """The run of an attempt that an earlier process of the tracker opened, or a new one."""
        found = self._client.search_runs([self._stages.experiment_id], f"tags.attempt = '{result.attempt}'", max_results=1)
        if not found:
            self.open_stage(result.attempt, result.key, result.kind, result.kind, {})
            return self._runs[result.attempt]
        info = found[0].info
        self._runs[result.attempt] = (info.run_id, self._artifacts(found[0]))
        if info.status != "RUNNING":
            self._finished_runs[result.key] = info.run_id
        return self._runs[result.attempt]

    def _artifacts(self, run: Run) -> str:
        """Where a run's artifacts are, for every machine: a server that serves them names their place only relative to itself."""
        uri = str(run.info.artifact_uri)
        return str(MlflowArtifactsRepository.resolve_uri(uri, self._uri)) if uri.startswith("mlflow-artifacts:") else uri


def _finished(run: Run, uri: str) -> Finished:
    tags = run.data.tags
    facts = {name.removeprefix(FACT): value for name, value in tags.items() if name.startswith(FACT)}
    return Finished(
        key=tags["key"], kind=tags["stage"], status=tags["status"], failure_class=tags.get("failure_class", ""),
        message=tags.get("message", ""), digest=tags.get("digest", ""), metrics=dict(run.data.metrics), facts=facts,
        uri=uri, seconds=run.data.metrics.get("stage_seconds", 0.0),
    )


def _experiment(client: MlflowClient, name: str, artifacts: str | None) -> Experiment:
    location = f"{artifacts}/{name}" if artifacts else None
    found = _active(client, name)
    return found or client.get_experiment(client.create_experiment(name, artifact_location=location, tags=SHOWN_AS))


def _active(client: MlflowClient, name: str) -> Experiment | None:
    """An experiment by name, None where there is none. Raises StoreUnavailable for one that is deleted."""
    experiment = client.get_experiment_by_name(name)
    if experiment is not None and experiment.lifecycle_stage != "active":
        raise StoreUnavailable(f"the experiment {name!r} is deleted in MLflow; restore it, or choose another name for the sweep")
    return experiment


def _create_database(uri: str) -> None:
    """A new SQLite file in write-ahead mode, so that the MLflow UI reads while the sweep writes, and a commit costs no second sync."""
    if not uri.startswith("sqlite:///"):
        return
    path = Path(uri.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")


def _content(record: CellRecord, links: Mapping[str, str]) -> str:
    """Digest of a row. The commit that computed it is left out: a row stays as long as what it says does."""
    tags = {name: str(value) for name, value in record.tags.items() if name != "git_commit"}
    params = {name: str(value) for name, value in record.params.items()}
    metrics = {name: float(value) for name, value in record.metrics.items()}
    return _digest(json.dumps([params, tags, metrics, links], sort_keys=True))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
