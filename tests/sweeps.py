"""Sweeps run by the real command in a process of its own, and what they leave: in MLflow, on disk and among the processes."""

import atexit
import functools
import os
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import yaml
from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient

from sweep.worker.guard import descendants

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
RUN_SECONDS = 180.0
GONE_SECONDS = 10.0
UNSTEADY = re.compile(r"_seconds$|_ms$|^latency_|^throughput_per_s$|^peak_memory_bytes$|^energy_j$")
"""Metrics that differ from run to run."""

FAKE: dict[str, Any] = {
    "grid": {
        "framework": ["fake"], "dataset": ["synthetic"], "architecture": ["linear"], "seed": [0, 1],
        "runtime": ["fake"], "quantization": ["float32", "dynamic_int8"],
    },
    "train": {"epochs": 1},
    "measure": {"enabled": False},
    "slots": 2,
}


class Store:
    """A folder with sweep files and the ledger that they share."""

    def __init__(self, folder: Path, cache: Path) -> None:
        """`cache` keeps decoded data and what components state of themselves; to ask them again costs seconds."""
        self.folder, self.cache = folder, cache
        self.database = folder / "mlruns" / "mlflow.db"
        self.database.parent.mkdir(parents=True)
        shutil.copyfile(_empty_database(cache), self.database)
        self.uri = f"sqlite:///{self.database}"

    def write(self, name: str, **changes: Any) -> Path:
        """A sweep file: the fake one with these top-level keys in place of its own."""
        content = FAKE | {"name": name} | changes | {"store": {"tracking_uri": self.uri}}
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    def start(self, config: Path, *arguments: str) -> "Command":
        return Command(self, config, arguments)

    def run(self, config: Path, *arguments: str) -> "Command":
        """The command, at its end, with nothing left of it."""
        command = self.start(config, *arguments)
        command.wait()
        assert not (left := command.left_over()), left
        return command

    def runs(self, experiment: str, **tags: str) -> list[Run]:
        """Runs with these tags that MLflow shows."""
        client = MlflowClient(self.uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            return []
        chosen = " and ".join(f"tags.{name} = '{value}'" for name, value in tags.items())
        return list(client.search_runs([found.experiment_id], chosen, ViewType.ACTIVE_ONLY, max_results=10_000))

    def stages(self, kind: str, status: str = "FINISHED") -> list[Run]:
        """Runs of a kind of stage with a status of MLflow."""
        return [run for run in self.runs("stages", stage=kind) if run.info.status == status]

    def cells(self, sweep: str) -> dict[str, Run]:
        """The rows of a sweep's table by cell key. Every row is there once."""
        runs = self.runs(sweep, stage="cell")
        rows = {run.data.tags["cell_key"]: run for run in runs}
        assert len(rows) == len(runs), "a cell has more than one row"
        return rows

    def table(self, sweep: str) -> dict[str, Any]:
        """What of a sweep's table does not depend on when and how often it was run, by cell key."""
        return {key: _steady(run) for key, run in self.cells(sweep).items()}

    def finished(self) -> Counter[str]:
        """How many finished runs each stage key has."""
        return Counter(run.data.tags["key"] for run in self.runs("stages") if run.info.status == "FINISHED")

    def query(self, sql: str, *values: Any) -> list[Any]:
        """Rows of MLflow's database, read while a sweep writes to it."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)) as database:
            return database.execute(sql, values).fetchall()


class Process(NamedTuple):
    pid: int
    parent: int
    title: str

    @property
    def kind(self) -> str:
        """What it is for a sweep, "" for what belongs to Ray alone."""
        return next((kind for kind, sign in _SIGNS.items() if sign in self.title), "")

    def send(self, number: int) -> bool:
        """Whether it was still there to be sent a signal."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


_SIGNS = {
    "driver": "sweep.launch",
    "tracker": "multiprocessing.spawn",
    "guard": "sweep.worker.guard",
    "worker": "sweep.worker.serve",
    "actor": "ray::SiteActor",
    "directory": "ray::Directory",
    "trial": "ray::ImplicitFunc",
}


_KEEPER = """
import ctypes, os, signal, subprocess, sys, threading, time
from sweep.worker.guard import descendants

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
with open(sys.argv[1], "wb") as output:
    command = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
print(command.pid, flush=True)
threading.Thread(target=lambda: print(command.wait(), flush=True), daemon=True).start()
sys.stdin.read()
while left := descendants(os.getpid()):
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    time.sleep(0.02)
"""
"""Runs a command, tells its process and status, and ends all that is left of it when its own input closes.

It is a subreaper: what a command leaves becomes its child, also from a session of its own.
"""


class Command:
    """One `python -m sweep.launch` in a session of its own, with all that it starts."""

    def __init__(self, store: Store, config: Path, arguments: tuple[str, ...]) -> None:
        self._output = store.folder / f"output-{uuid.uuid4().hex}.txt"
        environment = os.environ | ENVIRONMENT | {"SWEEP_CACHE": str(store.cache), "TMPDIR": _temporary_folder()}
        command = [sys.executable, "-m", "sweep.launch", str(config), *arguments]
        self._keeper = subprocess.Popen(
            [sys.executable, "-c", _KEEPER, str(self._output), *command], cwd=store.folder, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
        )
        self.pid = int(self._said())
        self._status: int | None = None

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def running(self) -> bool:
        return not self._ended(0)

    def wait(self, seconds: float = RUN_SECONDS) -> int:
        """The exit status. A command that does not end is ended, with all it started, and fails the test with what it said."""
        if not self._ended(seconds):
            self.end()
            raise AssertionError(f"the command did not end within {seconds:g} s:\n{self.output}")
        assert self._status is not None
        return self._status

    def wait_until(self, true: Callable[[], Any], seconds: float = 60.0) -> Any:
        """What `true` returns once that counts as true. Fails the test where the command ends first, or it takes too long."""
        deadline = time.monotonic() + seconds
        while not (found := true()):
            if not self.running or time.monotonic() > deadline:
                self.end()
                raise AssertionError(f"it never came to that:\n{self.output}")
            time.sleep(0.05)
        return found

    def interrupt(self) -> None:
        """Ctrl-C in a terminal: SIGINT to the whole foreground group."""
        os.killpg(self.pid, signal.SIGINT)

    def terminate(self) -> None:
        """What a cluster does before it ends a pod."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def processes(self) -> list[Process]:
        """All that lives of this command, itself included."""
        return [process for pid in descendants(self._keeper.pid) if (process := _process(pid))]

    def left_over(self, seconds: float = GONE_SECONDS) -> list[Process]:
        """What still lives so long after the command's end; it is ended then."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.end()
        return left

    def end(self) -> None:
        """End whatever lives of this command."""
        said = self._keeper.communicate()[0]
        if self._status is None:
            self._status = int(said or -signal.SIGKILL)

    def _ended(self, seconds: float) -> bool:
        if self._status is None and select.select([self._keeper.stdout], [], [], seconds)[0]:
            self._status = int(self._said())
        return self._status is not None

    def _said(self) -> bytes:
        assert self._keeper.stdout is not None
        return self._keeper.stdout.readline()


def artifacts(run: Run) -> Path:
    """The folder of a run's artifacts, in a store on this machine."""
    return Path(urlparse(run.info.artifact_uri).path)


@functools.cache
def _temporary_folder() -> str:
    """For sockets, whose paths must be short, for Ray's logs, and for the host's lock: tests wait for no sweep but their own."""
    folder = tempfile.mkdtemp(prefix="sweep-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _empty_database(cache: Path) -> Path:
    """MLflow's tables without a run, made once: to make them takes MLflow longer than a small sweep takes."""
    path = cache / "empty.db"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


def _steady(run: Run) -> dict[str, Any]:
    tags = {name: run.data.tags.get(name) for name in ("status", "reason", "failure_class", "failed_stage", "access", "stage_keys")}
    metrics = {name: value for name, value in run.data.metrics.items() if not UNSTEADY.search(name)}
    return {"params": run.data.params, "tags": tags, "metrics": metrics, "names": sorted(run.data.metrics)}


def _process(pid: int) -> Process | None:
    """A living process, None for one that has ended in the meantime."""
    folder = Path(f"/proc/{pid}")
    try:
        title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None
    return Process(pid, parent, title)
