"""One attempt at one stage, on the machine it was sent to: get the inputs, let workers do it, turn what comes back into a result."""

import importlib
import json
import os
import platform
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sweep import hostlock, own_inputs, toolchain
from sweep.axes import OWN_INPUTS
from sweep.contracts import Bench
from sweep.data import Prepared, Splits, prepare, splits
from sweep.errors import STAGE_FAILURE, DataUnavailable, Raised, StageFailed
from sweep.inputs import read_labels
from sweep.records import FAILED, OK, READ, DataOrder, Order, Place, Result, Upload, verify, write_manifest
from sweep.work import Outcome, Work
from sweep.workers import Limits, Pool, Shape

RAISED_CLASSES = {
    "FloatingPointError": "diverged",
    "ImportError": "env_unavailable",
    "ModuleNotFoundError": "env_unavailable",
    "LoadFailed": "load_failed",
    "WrongProcessor": "env_unavailable",
    "MemoryError": "oom_host",
    "OutOfMemoryError": "oom_gpu",
    "ResourceExhaustedError": "oom_gpu",
}
"""Exceptions whose class does not depend on the stage, by the name of their type."""


class FileStore(Protocol):
    """Artifacts that are not on this machine's disk."""

    def fetch(self, uri: str, folder: Path) -> None:
        """Download a run's artifacts into a folder that does not exist yet."""

    def upload(self, upload: Upload, folder: Path) -> None:
        """Make a folder's files a run's artifacts."""


class Site:
    """What a machine keeps between stages: its workers, data sets and fetched inputs. Safe to use from several threads."""

    def __init__(self, cache: Path, keep: int, recycle_bytes: int, memory_bytes: int, files: FileStore) -> None:
        """`memory_bytes` is what one stage may use where its order leaves it to the machine."""
        self.pool = Pool(keep, recycle_bytes)
        self._memory_bytes = memory_bytes
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
        settings = {"threads": order.threads, **order.stage.settings}
        shape = Shape(toolchain.named(settings["toolchain"]), order.threads, gpus)
        limits = Limits(order.seconds, order.memory_bytes or self._memory_bytes, until=time.monotonic() + order.seconds)
        bench = Bench(self.pool, shape, limits, log)
        kind = importlib.import_module(f"sweep.work.{order.stage.kind}")
        try:
            outcome = kind.run(Work(settings, inputs, data, folder, bench))
        except StageFailed as failure:
            for place in (order.folder, *inputs.values()):  # of no use to who reads the line, and long
                failure.message = failure.message.replace(f"{place}/", "")
            raise
        return outcome | {"facts": _where(order) | _texts(outcome.get("runs", {})) | outcome.get("facts", {})}

    def _uploaded(self, upload: Upload, result: Result) -> Result:
        try:
            self._files.upload(upload, Path(result.folder or ""))
        except Exception as error:  # whatever the store's client raises
            message = f"the stage's files could not be uploaded: {error}"
            result = replace(result, status=FAILED, failure_class="tracking_failed", message=message[:1000])
        if result.ok:
            self._keep(Path(result.folder or ""), result.digest)
        shutil.rmtree(result.folder or "", ignore_errors=True)
        return replace(result, folder=None)

    def _keep(self, folder: Path, digest: str) -> None:
        """Keep a stage's files where what comes next on this node looks for them; the two may be on different file systems."""
        kept = self._cache / "fetched" / digest
        part = kept.with_name(f"{digest}.{os.getpid()}.{threading.get_ident()}.part")
        try:
            shutil.copytree(folder, part)
            part.rename(kept)
        except OSError:  # it is there already, or there is no room: it can be fetched
            shutil.rmtree(part, ignore_errors=True)

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
                    prepared, parts = prepared_data(order.name, order.path, order.allow_subset, dict(order.settings), self._cache)
                except (DataUnavailable, ValueError) as error:
                    raise StageFailed("data_unavailable", str(error)) from None
                if (prepared.digest, parts.digest) != (order.digest, order.splits):
                    message = f"{order.name} on {platform.node()} is not the data set that the sweep was planned on"
                    raise StageFailed("data_unavailable", message)
                self._data[order] = {"folder": str(prepared.folder), "splits": str(_split_file(prepared, parts))}
            return self._data[order]


def prepared_data(
    name: str, path: str | None, allow_subset: bool, settings: Mapping[str, int], cache: Path
) -> tuple[Prepared, Splits]:
    """A data set, or a user's own inputs, with its index lists; the attack list covers the whole test set, so that any number of examples
    is a prefix of it."""
    if OWN_INPUTS.fullmatch(name):
        return own_inputs.prepare(path or name, cache)
    prepared = prepare(name, path=path, allow_subset=allow_subset, settings=settings, cache=cache / "data")
    return prepared, splits(read_labels(str(prepared.folder), "train"), prepared.n_test, attack=prepared.n_test)


def _class_of(failure: StageFailed, kind: str) -> str:
    if isinstance(failure, Raised):
        return RAISED_CLASSES.get(failure.kind, STAGE_FAILURE[kind])
    return failure.failure_class


def _where(order: Order) -> dict[str, str]:
    read = {READ + role: place.digest for role, place in order.inputs.items()}
    settings = order.stage.settings
    backend = str(settings.get("framework") or settings.get("runtime"))
    return {"host": platform.node(), "threads": str(order.threads), "backend": backend} | read


def _texts(runs: Mapping[str, Any]) -> dict[str, str]:
    """What a runtime says of itself, as tags."""
    return {f"runs_{name}": str(value) for name, value in runs.items()}


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
