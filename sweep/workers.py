"""The owner's side of the border: starting workers through a guard, calling them with a deadline, keeping them warm."""

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

from sweep.errors import Raised, StageFailed, class_of_death
from sweep.toolchain import Toolchain
from sweep.worker import wire
from sweep.worker.guard import has_variable
from sweep.worker.serve import KEY_VARIABLE

START_SECONDS = 60.0
WATCH_SECONDS = 0.25
SECRET = re.compile("^(MLFLOW|AWS|RAY)_|TOKEN|SECRET|PASSWORD|CREDENTIAL")
"""Variables that no framework needs, and that no log of one should hold."""
GUARD_VARIABLE = "SWEEP_GUARD"
"""Names the guard of everything below it, also what is no descendant of it any more."""


@dataclass(frozen=True)
class Limits:
    """What a call may use: its own seconds, and where it is one of a stage's many, the time on the monotonic clock when that ends."""

    seconds: float
    memory_bytes: int
    until: float = math.inf


@dataclass(frozen=True)
class Shape:
    """What a warm worker can't change any more: its toolchain, its threads and its devices."""

    toolchain: Toolchain
    threads: int = 1
    gpus: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """The worker's environment: the owner's, with threads and devices set explicitly, since neither Ray nor the frameworks do."""
        threads = str(self.threads)
        chosen = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), threads)
        chosen |= {
            "TF_NUM_INTEROP_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus),
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
        }
        inherited = {name: value for name, value in os.environ.items() if not SECRET.search(name)}
        return inherited | chosen | self.toolchain.environment()


class Guard:
    """The process that starts workers and ends them, see `sweep.worker.guard`. Safe to use from several threads."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sweep.worker.guard"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True, env=dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parent.parent)},
        )

    def ask(self, verb: str, value: Any) -> dict[str, Any]:
        """One request and its answer. Raises StageFailed `preempted` where the guard is gone, and its workers with it."""
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            try:
                self._process.stdin.write(json.dumps({verb: value}) + "\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
            except OSError:
                answer = ""
        if not answer:
            self._end_orphans()
            raise StageFailed("preempted", "the guard of the workers was ended from outside")
        return json.loads(answer)

    def alive(self) -> bool:
        return self._process.poll() is None

    def _end_orphans(self) -> None:
        """Workers die with their guard; end what they had started, which nobody else looks after now."""
        self._process.wait()
        while left := [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and has_variable(entry, GUARD_VARIABLE, self.mark)]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def close(self) -> None:
        """End every worker and everything that workers left, and wait for it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


@dataclass
class Worker:
    """A process of one toolchain, connected. `call` is for one thread at a time."""

    shape: Shape
    guard: Guard
    pid: int
    connection: Connection
    folder: Path
    used: float = field(default_factory=time.monotonic)
    gone: bool = False

    def call(
        self, function: str, arguments: Mapping[str, Any], limits: Limits, log: Path, arrays: Sequence[np.ndarray] = ()
    ) -> tuple[Any, list[np.ndarray]]:
        """Run `module:function` in the worker; what it returns, and its arrays.

        Raises StageFailed: `timeout`, `oom_host`, `crash_signal` or `preempted` (the worker has ended then), or "" as the class
        where the function raised, which the caller names by its stage.
        """
        deadline, killed_for_memory = min(time.monotonic() + limits.seconds, limits.until), memory_kills()
        try:
            wire.send(self.connection, {"call": function, "arguments": dict(arguments), "log": str(log)}, arrays)
            while not self.connection.poll(WATCH_SECONDS):
                if time.monotonic() > deadline:
                    self.end()
                    raise StageFailed("timeout", f"took over {limits.seconds:g} s")
                if (resident := tree_bytes(self.pid)) > limits.memory_bytes:
                    self.end()
                    raise StageFailed("oom_host", f"held {resident / 1e9:.1f} GB of memory; the limit is {limits.memory_bytes / 1e9:.1f}")
            header, returned = wire.receive(self.connection)
        except (EOFError, OSError):
            failure_class, message = class_of_death(self.end())
            if failure_class == "preempted" and memory_kills() > killed_for_memory:
                failure_class, message = "oom_host", "the kernel ended the worker, or something else, for want of memory"
            raise StageFailed(failure_class, message) from None
        except ValueError as malformed:
            self.end()
            raise StageFailed("crash_signal", f"the worker's answer can't be read: {malformed}") from None
        self.used = time.monotonic()
        if error := header.get("error"):
            raise Raised(error["type"], error["message"], error["traceback"])
        return header["value"], returned

    def end(self) -> int:
        """End the worker with all it started; its return code, that of SIGKILL where the guard is gone too or another thread ends it."""
        if self.gone:
            return -signal.SIGKILL
        self.gone = True
        self.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(StageFailed):
            return int(self.guard.ask("end", self.pid)["returncode"])
        return -signal.SIGKILL


class Pool:
    """Warm workers by shape, least recently used out. Safe to use from several threads."""

    def __init__(self, keep: int, recycle_bytes: int) -> None:
        self._keep = keep
        self._recycle_bytes = recycle_bytes
        self._guard = Guard()
        self._idle: list[Worker] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def borrow(self, shape: Shape, log: Path) -> Iterator[Worker]:
        """A warm worker, or a new one. It goes back unless it has ended or grown."""
        worker = self._take(shape) or self._start(shape, log)
        try:
            yield worker
        except Raised:
            self._give(worker)
            raise
        except BaseException:
            if not worker.gone:
                worker.end()
            raise
        self._give(worker)

    @contextlib.contextmanager
    def fresh(self, shape: Shape, log: Path) -> Iterator[Worker]:
        """A new worker that ends with the block: peak memory and warm-up are only honest in one."""
        worker = self._start(shape, log)
        try:
            yield worker
        finally:
            if not worker.gone:
                worker.end()

    def close(self) -> None:
        self._guard.close()

    def _take(self, shape: Shape) -> Worker | None:
        with self._lock:
            for worker in sorted(self._idle, key=lambda w: -w.used):
                if worker.shape == shape:
                    self._idle.remove(worker)
                    break
            else:
                return None
        if worker.connection.poll():  # an idle worker says nothing, unless it has ended
            worker.end()
            return self._take(shape)
        return worker

    def _give(self, worker: Worker) -> None:
        if worker.gone:
            return
        if resident_bytes(worker.pid) > self._recycle_bytes:
            worker.end()
            return
        with self._lock:
            self._idle.append(worker)
            self._idle.sort(key=lambda w: w.used)
            surplus = [self._idle.pop(0) for _ in range(len(self._idle) - self._keep)]
        for old in surplus:
            old.end()

    def _start(self, shape: Shape, log: Path) -> Worker:
        """Raises StageFailed `env_unavailable` where the toolchain's interpreter does not come up."""
        with self._lock:
            if not self._guard.alive():
                self._guard = Guard()
                self._idle.clear()
            guard = self._guard
        folder = Path(tempfile.mkdtemp(prefix="sweep-worker-"))
        key = secrets.token_bytes(32)
        try:
            with Listener(str(folder / "socket"), "AF_UNIX", authkey=key) as listener:
                environment = shape.environment() | {KEY_VARIABLE: key.hex(), GUARD_VARIABLE: guard.mark}
                command = [*shape.toolchain.command, "-m", "sweep.worker.serve", str(folder / "socket")]
                started = guard.ask("start", {"command": command, "environment": environment, "log": str(log)})
                if "error" in started:
                    why = f"a worker of toolchain {shape.toolchain.name} can't be started: {started['error']}"
                    raise StageFailed("env_unavailable", why)
                pid = started["pid"]
                connection = _accept(listener, guard, pid, shape.toolchain.name)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        wire.receive(connection)
        return Worker(shape, guard, pid, connection, folder)


def _accept(listener: Listener, guard: Guard, pid: int, toolchain: str) -> Connection:
    """Wait for the worker to connect, but not for one that has died or hangs on import."""
    listener._listener._socket.settimeout(WATCH_SECONDS)  # type: ignore[attr-defined]  # accept() takes no time-out
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return listener.accept()
        except TimeoutError:
            returncode = guard.ask("status", pid)["returncode"]
            if returncode is None and time.monotonic() < deadline:
                continue
            guard.ask("end", pid)
            how = f"did not start within {START_SECONDS:g} s" if returncode is None else f"exited with status {returncode}"
            raise StageFailed("env_unavailable", f"a worker of toolchain {toolchain} {how}") from None


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def tree_bytes(pid: int) -> int:
    """Resident memory of a process and of all that it has started."""
    total = resident_bytes(pid)
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as children:
                total += sum(tree_bytes(int(child)) for child in children.read().split())
    return total


def memory_kills() -> int:
    """How many processes the kernel has ended for want of memory since it started, those of memory-limited groups included."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat") as vmstat:
        return int(next((line.split()[1] for line in vmstat if line.startswith("oom_kill ")), 0))
    return 0
