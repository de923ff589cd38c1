"""One attempt at one stage, on the machine it was sent to: get the inputs, let workers do it, turn what comes back into a result."""

import contextlib
import json
import os
import platform
import secrets
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from sweep import components, hostlock, metrics, timing, toolchains
from sweep.contracts import Bench
from sweep.data import Prepared, Splits, prepare, splits
from sweep.errors import STAGE_FAILURE, DataUnavailable, StageFailed
from sweep.images import labels as read_labels
from sweep.records import FAILED, OK, READ, DataOrder, Order, Place, Result, Upload, verify, write_manifest
from sweep.stages.models import deployed_bytes
from sweep.workers import Limits, Pool, Raised, Shape

RAISED_CLASSES = {
    "FloatingPointError": "diverged",
    "LoadFailed": "load_failed",
    "WrongProcessor": "env_unavailable",
    "MemoryError": "oom_host",
    "OutOfMemoryError": "oom_gpu",
    "ResourceExhaustedError": "oom_gpu",
}
"""Exceptions whose class does not depend on the stage, by the name of their type."""

Outcome = dict[str, Any]


class FileStore(Protocol):
    """Artifacts that are not on this machine's disk."""

    def fetch(self, uri: str, folder: Path) -> None:
        """Download a run's artifacts into a folder that does not exist yet."""

    def upload(self, upload: Upload, folder: Path) -> None:
        """Make a folder's files a run's artifacts."""


class Site:
    """What a machine keeps between stages: its workers, data sets and fetched inputs. Safe to use from several threads."""

    def __init__(self, cache: Path, keep: int, recycle_bytes: int, files: FileStore) -> None:
        self.pool = Pool(keep, recycle_bytes)
        self._cache = cache
        self._files = files
        self._lock = threading.Lock()
        self._data: dict[DataOrder, dict[str, str]] = {}
        self._verified: set[str] = set()

    def run(self, order: Order, gpus: tuple[str, ...] = ()) -> Result:
        """The result of an order, whatever happens; files, log and manifest are in its folder."""
        folder = Path(order.folder)
        folder.mkdir(parents=True)
        log = folder / "log.txt"
        log.touch()
        started = time.time()
        try:
            with hostlock.held(exclusive=order.stage.kind == "measure"):
                started = time.time()
                outcome = self._outcome(order, folder, log, gpus)
            curves = outcome.get("curves", ())
            result = Result(order.stage.key, order.stage.kind, order.attempt, OK, outcome["metrics"], curves, outcome["facts"])
        except StageFailed as failure:
            result = Result(order.stage.key, order.stage.kind, order.attempt, FAILED, facts=_where(order))
            result = replace(result, failure_class=_class_of(failure, order.stage.kind), message=failure.message[:1000])
        result = replace(result, folder=order.folder, seconds=time.time() - started, ended=time.time())
        _write_result(folder, order, result)
        result = replace(result, digest=write_manifest(folder))
        return self._uploaded(order.upload, result) if order.upload else result

    def _outcome(self, order: Order, folder: Path, log: Path, gpus: tuple[str, ...]) -> Outcome:
        inputs = {role: self._located(place) for role, place in order.inputs.items()}
        data = self._data_of(order.data) if order.data else None
        settings = order.stage.settings
        shape = Shape(toolchains.default(), settings["threads"], gpus)
        bench = Bench(self.pool, shape, Limits(order.seconds, order.memory_bytes), log)
        work = Work(order.stage.kind, settings, inputs, data, folder, bench)
        outcome = _KINDS[order.stage.kind](work)
        return outcome | {"facts": _where(order) | _texts(outcome.get("runs", {})) | outcome.get("facts", {})}

    def _uploaded(self, upload: Upload, result: Result) -> Result:
        try:
            self._files.upload(upload, Path(result.folder or ""))
        except Exception as error:  # whatever the store's client raises
            message = f"the stage's files could not be uploaded: {error}"
            return replace(result, status=FAILED, failure_class="tracking_failed", message=message[:1000])
        kept = self._cache / "fetched" / result.digest  # what comes next on this node finds it there
        kept.parent.mkdir(exist_ok=True)
        if result.ok and not kept.exists():
            Path(result.folder or "").rename(kept)
        return replace(result, folder=None)

    def _located(self, place: Place) -> str:
        """The folder of an input on this machine, verified once by content."""
        folder = place.folder
        if folder is None or not Path(folder).is_dir():
            assert place.uri is not None
            folder = str(self._cache / "fetched" / place.digest)
            if not Path(folder).is_dir():
                self._files.fetch(place.uri, Path(folder))
        if folder not in self._verified:
            if reason := verify(Path(folder), place.digest, content=True):
                raise StageFailed("tracking_failed", f"an input can't be used: {reason}")
            self._verified.add(folder)
        return folder

    def _data_of(self, order: DataOrder) -> dict[str, str]:
        with self._lock:
            if order not in self._data:
                try:
                    prepared, parts = prepared_data(order.name, order.path, order.allow_subset, self._cache)
                except (DataUnavailable, ValueError) as error:
                    raise StageFailed("data_unavailable", str(error)) from None
                if (prepared.digest, parts.digest) != (order.digest, order.splits):
                    message = f"{order.name} on {platform.node()} is not the data set that the sweep was planned on"
                    raise StageFailed("data_unavailable", message)
                self._data[order] = {"folder": str(prepared.folder), "splits": str(_split_file(prepared, parts))}
            return self._data[order]


class Work:
    """What a kind of stage gets to do its work with."""

    def __init__(
        self, kind: str, settings: Mapping[str, Any], inputs: Mapping[str, str], data: dict[str, str] | None, folder: Path, bench: Bench
    ) -> None:
        self.kind, self.settings, self.inputs, self.data, self.folder, self.bench = kind, settings, inputs, data, folder, bench

    def call(self, function: str, **arguments: Any) -> Any:
        """Run a function of a worker-side stage module in a warm worker."""
        with self.bench.pool.borrow(self.bench.shape, self.bench.log) as worker:
            return worker.call(f"sweep.stages.{function}", arguments, self.bench.limits, self.bench.log)[0]


def prepared_data(name: str, path: str | None, allow_subset: bool, cache: Path) -> tuple[Prepared, Splits]:
    """A data set with its index lists; the attack list covers the whole test set, so that any number of examples is a prefix of it."""
    prepared = prepare(name, path=path, allow_subset=allow_subset, cache=cache / "data")
    return prepared, splits(read_labels(str(prepared.folder), "train"), prepared.n_test, attack=prepared.n_test)


def _train(work: Work) -> Outcome:
    return work.call("train:run", settings=work.settings, data=work.data, out=str(work.folder))


def _transplant(work: Work) -> Outcome:
    return work.call("transplant:run", settings=work.settings, model=work.inputs["model"], data=work.data, out=str(work.folder))


def _convert(work: Work) -> Outcome:
    return work.call("convert:run", settings=work.settings, model=work.inputs["model"], data=work.data, out=str(work.folder))


def _evaluate(work: Work) -> Outcome:
    assert work.data is not None
    device = components.load("devices", work.settings["device"])
    arguments = {"settings": work.settings, "model": work.inputs["model"], "data": work.data, "out": str(work.folder)}
    outcome = device.run(work.bench, "sweep.stages.evaluate:run", arguments)
    logits, index = np.load(work.folder / "logits.npy"), np.load(work.folder / "index.npy")
    labels = read_labels(work.data["folder"], "test", index)
    found = metrics.evaluation(logits, labels) | {"model_size_bytes": deployed_bytes(work.inputs["model"])}
    if "source" in work.inputs:
        found |= metrics.parity(logits, np.load(Path(work.inputs["source"]) / "logits.npy"))
    if (exact := work.folder / "exact.npy").exists():
        reference = np.load(exact)
        found["float32_error_max"] = metrics.float32_error(logits[: len(reference)], reference)
    _write_outcomes(work.folder, metrics.outcome_columns(index, labels, logits))
    return outcome | {"metrics": outcome["metrics"] | found}


def _attack(work: Work) -> Outcome:
    return (_transfer if "attack" in work.inputs else _craft)(work)


def _craft(work: Work) -> Outcome:
    """ART in one worker, the model in another; whichever dies takes the stage with it."""
    bench, key = work.bench, secrets.token_bytes(32).hex()
    with tempfile.TemporaryDirectory(prefix="sweep-attack-") as private, contextlib.ExitStack() as stack:
        joint = {"address": os.path.join(private, "socket"), "key": key}
        held = stack.enter_context(bench.pool.borrow(bench.shape, bench.log))
        attacker = stack.enter_context(bench.pool.borrow(replace(bench.shape, gpus=()), bench.log))
        failures: list[StageFailed] = []

        def serve() -> None:
            try:
                arguments = {"settings": work.settings, "model": work.inputs["model"], **joint}
                held.call("sweep.stages.attack:serve", arguments, bench.limits, bench.log)
            except StageFailed as failure:
                failures.append(failure)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            arguments = {"settings": work.settings, "data": work.data, "out": str(work.folder), **joint}
            outcome, _arrays = attacker.call("sweep.stages.attack:craft", arguments, bench.limits, bench.log)
        except StageFailed as failure:
            if not isinstance(failure, Raised):
                held.end()  # it waits for an attacker that is gone
            thread.join()
            raise failures[0] if failures and isinstance(failure, Raised) else failure from None
        thread.join()
    with np.load(work.folder / "adversarial.npz") as made:
        found, columns = metrics.attack_outcome(made["label"], made["before"], made["after"], made["clean"], made["adversarial"])
        queries = round(outcome["queries"])
        _write_outcomes(work.folder, metrics.outcome_columns(made["index"], made["label"], made["after"], columns, queries))
    return {"metrics": outcome["metrics"] | found, "facts": {"access": work.settings["access"]}}


def _transfer(work: Work) -> Outcome:
    """The set that was crafted on the source, put to a converted model."""
    crafted = Path(work.inputs["attack"]) / "adversarial.npz"
    with np.load(crafted) as made:
        np.savez(work.folder / "inputs.npz", clean=made["clean"], adversarial=made["adversarial"])
        device = components.load("devices", work.settings["device"])
        arguments = {"settings": work.settings, "model": work.inputs["model"], "out": str(work.folder)}
        arguments["arrays_file"] = str(work.folder / "inputs.npz")
        outcome = device.run(work.bench, "sweep.stages.evaluate:predict", arguments)
        (work.folder / "inputs.npz").unlink()
        with np.load(work.folder / "logits.npz") as logits:
            before, after = logits["clean"], logits["adversarial"]
        found, columns = metrics.attack_outcome(made["label"], before, after, made["clean"], made["adversarial"])
        _write_outcomes(work.folder, metrics.outcome_columns(made["index"], made["label"], after, columns, 0))
    return {"metrics": found, "runs": outcome["runs"], "facts": {"access": work.settings["access"]}}


def _measure(work: Work) -> Outcome:
    settings = work.settings
    device = components.load("devices", settings["device"])
    candidate = {"settings": settings, "model": work.inputs["model"], "data": work.data}
    reference = None
    if "reference" in work.inputs:
        chosen = dict(settings) | {"runtime": settings["reference"]["runtime"]}
        reference = {"settings": chosen, "model": work.inputs["reference"], "data": work.data}
    load_average = os.getloadavg()[0]
    samples = device.measure(work.bench, candidate, reference, settings["processes"], settings["blocks"], settings["seed"])
    found = timing.latency(samples.candidate)
    if samples.reference:
        found |= timing.ratio(samples.candidate, samples.reference)
    found |= {
        "first_call_ms": 1e3 * float(np.median([opened["first_call_s"] for opened in samples.opened])),
        "load_ms": 1e3 * float(np.median([opened["load_s"] for opened in samples.opened])),
        "peak_memory_bytes": float(np.median([opened["peak_bytes"] for opened in samples.opened])),
        "throughput_per_s": settings["throughput_batch"] / float(np.median(samples.batch_seconds)),
        "throughput_batch": settings["throughput_batch"],
        "model_size_bytes": deployed_bytes(work.inputs["model"]),
    }
    if samples.energy_j is not None:
        found["energy_j"] = samples.energy_j
    kept = {name: getattr(samples, name) for name in ("candidate", "reference", "batch_seconds", "opened")}
    (work.folder / "samples.json").write_text(json.dumps(kept))
    labels = {name: str(value) for name, value in found.items() if isinstance(value, str | bool)}
    numbers = {name: value for name, value in found.items() if name not in labels}
    facts = labels | samples.facts | {"load_average": f"{load_average:.2f}"}
    return {"metrics": numbers, "runs": samples.opened[0]["runs"], "facts": facts}


_KINDS = {"train": _train, "transplant": _transplant, "convert": _convert, "evaluate": _evaluate, "attack": _attack, "measure": _measure}


def _class_of(failure: StageFailed, kind: str) -> str:
    if isinstance(failure, Raised):
        return RAISED_CLASSES.get(failure.kind, STAGE_FAILURE[kind])
    return failure.failure_class


def _where(order: Order) -> dict[str, str]:
    read = {READ + role: place.digest for role, place in order.inputs.items()}
    settings = order.stage.settings
    backend = str(settings.get("framework") or settings.get("runtime"))
    return {"host": platform.node(), "threads": str(settings["threads"]), "backend": backend} | read


def _texts(runs: Mapping[str, Any]) -> dict[str, str]:
    """What a runtime says of itself, as tags."""
    return {f"runs_{name}": str(value) for name, value in runs.items()}


def _write_outcomes(folder: Path, columns: Mapping[str, np.ndarray]) -> None:
    pyarrow.parquet.write_table(pa.table(dict(columns)), folder / "outcomes.parquet")


def _write_result(folder: Path, order: Order, result: Result) -> None:
    stage = {"kind": order.stage.kind, "key": order.stage.key, "settings": order.stage.settings, "inputs": dict(order.stage.inputs)}
    outcome = {name: getattr(result, name) for name in ("status", "failure_class", "message", "metrics", "facts", "seconds", "attempt")}
    (folder / "result.json").write_text(json.dumps({"stage": stage, "result": outcome}, indent=1))


def _split_file(prepared: Prepared, parts: Splits) -> Path:
    path = prepared.folder / f"splits-{parts.digest[:16]}.npz"
    if not path.exists():
        temporary = path.with_name(f"{path.stem}.{os.getpid()}.{threading.get_ident()}.part.npz")
        np.savez(temporary, train=parts.train, validation=parts.validation, calibration=parts.calibration, attack=parts.attack)
        temporary.rename(path)
    return path
