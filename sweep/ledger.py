"""The tracker as a process of its own beside the scheduling, and the driver's handle on it.

The process holds the store's lock, so a second driver is told so and leaves, and a third that comes when the first was killed starts
only when all that was delivered has been written. Writes that MLflow can't take are spooled to disk and delivered later, in order.
"""

import contextlib
import fcntl
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sweep.errors import StoreBusy, SweepError
from sweep.records import CellRecord, Result

RETRY_SECONDS = 5.0
LEASE_SECONDS = 60.0
STARTS = 5
PASSING_CODES = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED")
SPOOLED = ("open_stage", "commit_stage", "interrupt_stage", "write_cell", "log_table", "close_sweep")


@dataclass(frozen=True)
class StoreAddress:
    """Where the ledger is; every URI and path is absolute."""

    tracking_uri: str
    artifacts: str | None
    folder: str  # for the lock, the spool and staged files, on the driver's machine
    sweep: str
    owner: str
    reads_only: bool = False  # nothing will be written, so another driver need not be shut out


class Ledger:
    """Requests to the tracker, answered as futures in the order they were made. A tracker that was killed is started again."""

    def __init__(self, address: StoreAddress) -> None:
        """Raises StoreBusy or StoreUnavailable."""
        self._address = address
        self._pending: dict[int, tuple[tuple[Any, ...], Future[Any]]] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._closing = False
        self._broken: SweepError | None = None
        self._start()
        self._reader = threading.Thread(target=self._read, name="ledger", daemon=True)
        self._reader.start()

    def call(self, verb: str, *arguments: Any) -> Future[Any]:
        """Ask for a method of `tracking.Tracker`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._broken is not None:
                future.set_exception(self._broken)
                return future
            number = next(self._numbers)
            self._pending[number] = ((number, verb, arguments), future)
            with contextlib.suppress(OSError):  # the reader starts the tracker again and sends what is pending
                self._connection.send((number, verb, arguments))
        return future

    @property
    def backlog(self) -> int:
        """Requests that are not answered yet."""
        return len(self._pending)

    def close(self) -> int:
        """Wait for what is pending and end the tracker; how many writes were left in the spool. May be called again."""
        if not self._closing:
            self._closing = True
            self._spooled: int = self.call("finish").result()
            self._process.join()
        return self._spooled

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._address), name="sweep-tracker", daemon=True)
        self._process.start()
        theirs.close()
        try:
            error = ours.recv()
        except EOFError:
            raise SweepError(f"the tracker did not start (exit status {self._process.exitcode})") from None
        if error is not None:
            self._process.join()
            raise error
        self._connection: Connection = ours

    def _read(self) -> None:
        while True:
            try:
                number, error, value = self._connection.recv()
            except (EOFError, OSError):
                if (self._closing and not self._pending) or not self._start_again():
                    return
                continue
            _request, future = self._pending.pop(number)  # without the lock: `call` may hold it until answers are read
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

    def _start_again(self) -> bool:
        """Another tracker in the place of one that was killed; False, and every request fails, where none comes up."""
        self._lock.acquire()
        for again in range(STARTS):
            try:
                self._process.join()
                self._start()
                self._connection.send((-1, "scan", ()))
                self._connection.recv()
            except (SweepError, EOFError, OSError) as error:
                self._broken = error if isinstance(error, SweepError) else SweepError("the tracker was ended from outside, again and again")
                time.sleep(again)
                continue
            self._broken = None
            requests = [request for request, _future in self._pending.values()]
            threading.Thread(target=self._send_again, args=(requests,), daemon=True).start()
            return True
        for _request, future in self._pending.values():
            future.set_exception(self._broken)
        self._pending.clear()
        self._lock.release()
        return False

    def _send_again(self, requests: list[tuple[Any, ...]]) -> None:
        """Beside the reader, since a tracker whose answers nobody reads stops reading too. Frees the lock."""
        with contextlib.suppress(OSError):
            for request in requests:
                self._connection.send(request)
        self._lock.release()


def _serve(connection: Connection, address: StoreAddress) -> None:
    """The tracker's process: until the driver closes the connection or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # the creation of a database is no news
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        with contextlib.ExitStack() as stack:
            if not address.reads_only:
                stack.enter_context(_locked(Path(address.folder), address.sweep))
            from sweep.tracking import Tracker  # late: MLflow is loaded in this process alone, and not to be told that the store is in use

            tracker = Tracker(address.tracking_uri, address.artifacts, address.sweep, address.owner)
            lease = None if address.reads_only or address.tracking_uri.startswith("sqlite:") else _Lease(tracker, address.owner)
            spool = Path(address.folder) / ("no-spool" if address.reads_only else f"spool-{address.sweep}.jsonl")
            connection.send(None)
            _Service(connection, tracker, lease, spool).run()
    except SweepError as error:
        connection.send(error)


class _Service:
    def __init__(self, connection: Connection, tracker: Any, lease: Any, spool: Path) -> None:
        self._connection, self._tracker, self._lease, self._spool = connection, tracker, lease, spool
        self._waiting: deque[tuple[str, tuple[Any, ...]]] = deque(_read_spool(spool))
        self._tried = 0.0

    def run(self) -> None:
        while True:
            if self._connection.poll(RETRY_SECONDS):
                try:
                    number, verb, arguments = self._connection.recv()
                except (EOFError, OSError):  # the driver is gone
                    self._deliver(force=True)
                    break
                self._answer(number, verb, arguments)
                if verb == "finish":
                    break
            self._deliver()
        if self._lease:
            self._lease.release()

    def _answer(self, number: int, verb: str, arguments: tuple[Any, ...]) -> None:
        error, value = None, None
        if verb == "finish":
            self._deliver(force=True)
            value = len(self._waiting)
        elif verb == "waiting":
            value = len(self._waiting)
        elif verb in SPOOLED and self._waiting:
            self._keep(verb, arguments)
        else:
            try:
                if self._lease and self._lease.lost:
                    raise StoreBusy("another driver has taken the store over, after this one could not renew its lease in time")
                value = getattr(self._tracker, verb)(*arguments)
                if verb == "scan" and self._waiting:  # what an earlier driver could not write has been done too
                    self._deliver(force=True)
                    value = self._tracker.scan()
            except Exception as failure:  # the store's faults are many; a write is kept, a question is answered with its error
                if verb in SPOOLED and _passing(failure):
                    self._keep(verb, arguments)
                else:
                    error = failure if isinstance(failure, SweepError) else SweepError(f"{verb}: {' '.join(str(failure).split())[:400]}")
        with contextlib.suppress(OSError):  # a driver that is gone needs no answer
            self._connection.send((number, error, value))

    def _keep(self, verb: str, arguments: tuple[Any, ...]) -> None:
        self._waiting.append((verb, arguments))
        with self._spool.open("a") as file:
            file.write(json.dumps([verb, [_plain(argument) for argument in arguments]]) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _deliver(self, force: bool = False) -> None:
        """Write what waits, in order, until the store refuses again."""
        if not self._waiting or (not force and time.monotonic() - self._tried < RETRY_SECONDS):
            return
        self._tried = time.monotonic()
        while self._waiting:
            verb, arguments = self._waiting[0]
            try:
                getattr(self._tracker, verb)(*arguments)
            except Exception as failure:
                if _passing(failure):
                    return
                print(f"tracking: a spooled {verb} was refused for good: {failure}", flush=True)
            self._waiting.popleft()
        self._spool.unlink(missing_ok=True)


class _Lease:
    """Who writes to a store on a server: a tag of the experiment that all sweeps share, renewed by a thread while the tracker lives.

    `lost` is set where another owner's name stands there.
    """

    def __init__(self, tracker: Any, owner: str) -> None:
        """Raises StoreBusy where another owner's lease has not run out."""
        self._tracker, self._owner, self.lost = tracker, owner, False
        self._refuse_other()
        self._set()
        time.sleep(1.0)  # two that start together: the one whose tag stays has it
        self._refuse_other()
        self._released = threading.Event()
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def release(self) -> None:
        """For the next driver, which need not wait."""
        self._released.set()
        with contextlib.suppress(Exception):  # a server that is away; the lease runs out
            if not self.lost and self._owner_there() == self._owner:
                self._tracker.set_lease("")

    def _renew(self) -> None:
        while not self._released.wait(LEASE_SECONDS / 3):
            with contextlib.suppress(Exception):  # a server that is away for a moment; the next renewal tries again
                self.lost = self._owner_there() not in ("", self._owner)
                if self.lost:
                    return
                self._set()

    def _set(self) -> None:
        self._tracker.set_lease(f"{self._owner} {time.time() + LEASE_SECONDS:.0f}")

    def _owner_there(self) -> str:
        return str(self._tracker.get_lease().rpartition(" ")[0])

    def _refuse_other(self) -> None:
        owner, _space, until = self._tracker.get_lease().rpartition(" ")
        if owner and owner != self._owner and float(until) > time.time():
            wait = f"wait for its end, or up to {LEASE_SECONDS:g} s after it was killed"
            raise StoreBusy(f"another driver ({owner}) runs a sweep in this store; {wait}")


@contextlib.contextmanager
def _locked(folder: Path, sweep: str) -> Iterator[None]:
    with (folder / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise StoreBusy(f"the store {folder} is in use by another driver ({file.read().strip()}); wait for it to end") from None
        file.truncate(0)
        file.write(f"sweep {sweep}, process {os.getppid()}")
        file.flush()
        yield


def _passing(failure: Exception) -> bool:
    """Whether a write may succeed later: the store is away or busy, as opposed to a request that it will never take."""
    code = getattr(failure, "error_code", None)
    return isinstance(failure, OSError) or code in PASSING_CODES


_RECORDS = {"Result": Result, "CellRecord": CellRecord}


def _plain(value: Any) -> Any:
    return {"record": type(value).__name__, "fields": asdict(value)} if type(value).__name__ in _RECORDS else value


def _read_spool(spool: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    if not spool.exists():
        return
    text = spool.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:  # the tracker was killed while it wrote the last one, and what comes next must not be joined to it
        spool.write_text(whole)
    for line in whole.splitlines():
        verb, arguments = json.loads(line)
        yield verb, tuple(
            _RECORDS[value["record"]](**value["fields"]) if isinstance(value, dict) and "record" in value else value for value in arguments
        )
