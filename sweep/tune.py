"""Ray Tune: a stage is a trial. A searcher hands out what the scheduler says is ready, and takes the results."""

import json
import os
import shutil
import signal
import uuid
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import ray
from ray import tune
from ray.tune.search import Searcher

from sweep import actors, lifeline
from sweep.plan import Stage
from sweep.records import FAILED, Order, Result
from sweep.scheduling import Scheduler

TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # the ledger is MLflow; Tune's own state is never restored
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_THRESHOLD_S": "5",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TUNE_NO_WARN": "1",
}


class Conductor(Protocol):
    """What happens around each stage; called on the driver's loop, so it must not wait."""

    def open(self, stage: Stage, attempt: str) -> Future[Any]:
        """Prepare an attempt; it starts when the future is done."""

    def order(self, stage: Stage, attempt: str) -> Order:
        """The order for an attempt that starts now."""

    def ended(self, stage: Stage, result: Result) -> None:
        """A result has come."""


class PlanSearcher(Searcher):
    """Hands out stages as trials. Tune asks again while it says None, and stops at FINISHED."""

    def __init__(self, scheduler: Scheduler, conductor: Conductor) -> None:
        super().__init__(metric="ok", mode="max")
        self._scheduler = scheduler
        self._conductor = conductor
        self._trials: dict[str, tuple[Stage, str]] = {}
        self._opening: tuple[Stage, str, Future[Any]] | None = None

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._scheduler.finished:
            return Searcher.FINISHED
        if self._opening is None:
            stage = self._scheduler.next()
            if stage == "wait":
                return None
            attempt = uuid.uuid4().hex
            self._opening = (stage, attempt, self._conductor.open(stage, attempt))
        stage, attempt, opened = self._opening
        if not opened.done():
            return None
        self._opening = None
        self._trials[trial_id] = (stage, attempt)
        return {"order": self._conductor.order(stage, attempt), "gpu": stage.gpu}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        stage, attempt = self._trials.pop(trial_id)
        if result is None or error or "outcome" not in result:
            message = "the trial's process was lost"
            outcome = Result(stage.key, stage.kind, attempt, FAILED, failure_class="preempted", message=message)
        else:
            outcome = Result(**json.loads(result["outcome"]))
        self._conductor.ended(stage, outcome)

    def __getstate__(self) -> dict[str, Any]:
        """Tune writes its search algorithm down at the start, for a restore that never comes."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a later start reads the ledger."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a sweep is resumed from MLflow, not from Tune's state")

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True


def run(scheduler: Scheduler, conductor: Conductor, directory: Any, slots: int, threads: int, storage: Path) -> None:
    """Run until every stage is decided, so many at a time, each with a CPU for every thread. Tune keeps its own state in `storage`."""

    def trial(config: dict[str, Any]) -> None:
        result = actors.run(directory, config["order"])
        tune.report({"ok": int(result.ok), "outcome": json.dumps(asdict(result))})

    def resources(config: dict[str, Any]) -> dict[str, float]:
        return {"CPU": threads, "GPU": 1} if config["gpu"] else {"CPU": threads}

    try:
        tune.Tuner(
            tune.with_resources(trial, resources),
            tune_config=tune.TuneConfig(
                search_alg=PlanSearcher(scheduler, conductor), num_samples=-1, max_concurrent_trials=slots, reuse_actors=True
            ),
            run_config=tune.RunConfig(name="stages", storage_path=str(storage), verbose=0),
        ).fit()
    finally:
        shutil.rmtree(storage, ignore_errors=True)


def start_ray(address: str | None, cpus: int | None = None, gpus: int = 0) -> None:
    """Join a running cluster, or start a private one on this machine with so many CPUs and GPUs."""
    os.environ.update(TUNE_ENVIRONMENT)
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": True}
    on_termination = signal.getsignal(signal.SIGTERM)
    if address is not None:
        ray.init(address=address, **options)
    else:
        with lifeline.tied():
            ray.init(num_cpus=cpus, num_gpus=gpus, include_dashboard=False, object_store_memory=200_000_000, **options)
    signal.signal(signal.SIGTERM, on_termination)  # Ray has put one in its place that ends the process at once
