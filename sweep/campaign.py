"""One run of a sweep in the driver: orders go out, results come in, the ledger and the view are told."""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sweep import cells
from sweep.ledger import Ledger
from sweep.plan import Plan, Stage
from sweep.progress import View
from sweep.records import SKIPPED, CellRecord, DataOrder, Order, Place, Result, Upload, local_folder
from sweep.scheduling import Outcome, Scheduler
from sweep.schema import Sweep

SHOWN_SETTINGS = (
    "framework", "runtime", "version", "toolchain", "control", "dataset", "architecture", "quantization", "format", "device", "attack",
    "access",
)
SKIPPED_ROWS = 2000
"""Beyond this many, skipped cells go into one table instead of runs of their own."""
AWAY_SECONDS = 5.0
"""How often a server that is away is asked again for the run that a node is to upload to."""


class Campaign:
    """A `tune.Conductor`. `rows` holds the cells that are decided."""

    def __init__(
        self, sweep: Sweep, plan: Plan, scheduler: Scheduler, ledger: Ledger, view: View,
        *, data: Mapping[str, DataOrder], work: Path, common: Mapping[str, str], server: str | None,
    ) -> None:
        """`server` is the tracking server's URI where nodes upload their files themselves, None where the driver sees them."""
        self._sweep, self._plan, self._scheduler, self._ledger, self._view = sweep, plan, scheduler, ledger, view
        self._data, self._work, self._common, self._server = data, work, common, server
        self._attempts: dict[str, str] = {}
        self._uris: dict[str, str] = {}
        self._opened: dict[str, Future[Any]] = {}
        self._commits: list[Future[Any]] = []
        self._writes: list[Future[Any]] = []
        self._waiting: dict[int, set[str]] = {}
        self._cells_of: dict[str, list[int]] = {}
        self._skipped = sum(1 for planned in plan.cells if planned.reason is not None)
        self.rows: dict[str, CellRecord] = {}
        for number, planned in enumerate(plan.cells):
            self._waiting[number] = {key for key in cells.awaited(planned, plan) if key not in scheduler.outcomes}
            for key in self._waiting[number]:
                self._cells_of.setdefault(key, []).append(number)
        self._write_decided(range(len(plan.cells)))

    def open(self, stage: Stage, attempt: str) -> Future[Any]:
        """Open the attempt's run. A node that uploads by itself needs the answer, and waits for a server that is away; the driver's own
        machine does without."""
        self._attempts[stage.key] = attempt
        shown = {name: stage.settings[name] for name in SHOWN_SETTINGS if stage.settings.get(name)}
        request = ("open_stage", attempt, stage.key, stage.kind, f"{stage.kind} {stage.label}", shown, time.time())
        ready = self._opened[attempt] = Future()
        if self._server is None:
            self._ledger.call(*request)
            ready.set_result(None)
        else:
            self._ask(request, ready)
        return ready

    def _ask(self, request: tuple[Any, ...], ready: Future[Any]) -> None:
        """Ask for a run until a server that is away has given one."""

        def answered(answer: Future[Any]) -> None:
            if error := answer.exception():
                ready.set_exception(error)
            elif answer.result() is None:
                threading.Timer(AWAY_SECONDS, self._ask, (request, ready)).start()
            else:
                ready.set_result(answer.result())

        self._ledger.call(*request).add_done_callback(answered)

    def order(self, stage: Stage, attempt: str) -> Order:
        opened, upload = self._opened.pop(attempt).result(), None
        if self._server is not None:
            run_id, uri = opened
            self._uris[stage.key] = uri
            upload = Upload(self._server, run_id, uri)
        self._view.started(stage)
        return Order(
            stage=stage,
            attempt=attempt,
            folder=str(self._work / attempt),
            inputs={role: self._place(key) for role, key in stage.inputs.items()},
            data=self._data[stage.settings["dataset"]] if "dataset" in stage.settings else None,
            threads=self._sweep.threads,
            seconds=getattr(self._sweep.limits.seconds, stage.kind),
            memory_bytes=int((self._sweep.limits.memory_gb or 0) * 1e9),
            upload=upload,
        )

    def ended(self, stage: Stage, result: Result) -> None:
        self._attempts.pop(stage.key, None)
        self._commits.append(self._ledger.call("commit_stage", result))
        decided = self._scheduler.take(stage.key, result)
        self._view.ended(stage, result, final=bool(decided))
        touched = sorted({number for key in decided for number in self._cells_of.get(key, ())})
        for number in touched:
            self._waiting[number].difference_update(decided)
        self._write_decided(touched)

    def interrupt(self) -> int:
        """Record what is still running as interrupted; how many stages that are."""
        for attempt in self._attempts.values():
            self._ledger.call("interrupt_stage", attempt)
        return len(self._attempts)

    def written(self) -> int:
        """How many rows were new or changed, once the ledger has written them. Raises SweepError where it refused a record for good."""
        for commit in self._commits:
            commit.result()
        return sum(1 for write in self._writes if write.result())

    def _place(self, key: str) -> Place:
        outcome: Outcome = self._scheduler.outcomes[key]
        if isinstance(outcome, Result):
            return Place(outcome.digest, outcome.folder, self._uris.get(key))
        folder = local_folder(outcome.uri)
        return Place(outcome.digest, str(folder) if folder else None, outcome.uri)

    def _write_decided(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            planned = self._plan.cells[number]
            if self._waiting[number] or planned.key in self.rows:
                continue
            common = dict(self._common)
            if data := self._data.get(planned.cell.dataset):
                common |= {"dataset_source": data.source, "dataset_digest": data.digest}
            row = cells.record(planned, self._plan, self._scheduler.outcomes, common)
            self.rows[planned.key] = row
            if row.tags["status"] != SKIPPED or self._skipped <= SKIPPED_ROWS:
                self._writes.append(self._ledger.call("write_cell", row))
