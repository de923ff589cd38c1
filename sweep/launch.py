"""The command: `python -m sweep.launch CONFIG [key=value ...] [--plan] [--address ADDRESS]`.

Exit status 0: every cell is ok, or skipped with a reason. 1: some failed. 2: bad input, nothing was started. 130: interrupted.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console

from sweep import config, facts, summary
from sweep.errors import SweepError
from sweep.execution import prepared_data
from sweep.host import local_host
from sweep.ledger import Ledger, StoreAddress
from sweep.plan import Host, Plan, PreparedData, make
from sweep.progress import Costs, View
from sweep.records import FAILED, OK, SKIPPED, DataOrder, Finished
from sweep.scheduling import Scheduler, reusable
from sweep.store import address, cache_folder

KEPT_WORKERS = 4
RECYCLE_BYTES = 4 << 30
OK_STATUS, FAILED_STATUS, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


class FoundData(NamedTuple):
    """A data set as the plan sees it, as a node finds it, and what is recorded of it."""

    planned: PreparedData
    order: DataOrder
    record: dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_intermixed_args(arguments)  # overrides may follow --plan too
    console = Console(highlight=False)
    try:
        with _terminated_as_interrupt():
            return _run(options, console)
    except SweepError as error:
        print(f"sweep: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        console.print("Interrupted before any work.")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sweep.launch", description="Run a sweep, or go on with one.", allow_abbrev=False)
    parser.add_argument("config", type=Path, help="the sweep's YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="values in place of the file's, such as train.epochs=1")
    parser.add_argument("--plan", action="store_true", help="print cells, stages, skips and the expected cost, and stop")
    parser.add_argument("--address", help="join the Ray cluster at this address instead of starting a private one")
    return parser


def _run(options: argparse.Namespace, console: Console) -> int:
    sweep = config.load(options.config, options.overrides)
    slots = sweep.slots or os.cpu_count() or 1
    store = address(sweep, owner=uuid.uuid4().hex[:12])
    cache = cache_folder()
    with contextlib.ExitStack() as stack:
        starting = stack.enter_context(ThreadPoolExecutor(1)).submit(Ledger, store)  # MLflow takes seconds to load
        stack.callback(lambda: starting.exception() or starting.result().close())
        data = {name: _prepared(sweep, name, cache, console) for name in sorted({name for grid in sweep.grid for name in grid.dataset})}
        known = facts.gather(cache)
        ledger = starting.result()
        finished: dict[str, Finished] = ledger.call("scan").result()
        host = _join(options.address, slots, console) if options.address else local_host()
        if sweep.processor != "auto":
            host = host._replace(processor=sweep.processor)
        plan = make(sweep, known, {name: found.planned for name, found in data.items()}, host)
        usable = _usable(plan, finished, ledger)
        costs = Costs(finished)
        summary.print_plan(console, sweep.name, plan, usable, costs, slots)
        if options.plan:
            return OK_STATUS
        return _carry_out(sweep, plan, usable, costs, ledger, store, data, cache, slots, options.address, console)


def _carry_out(
    sweep: config.Sweep, plan: Plan, usable: dict[str, Finished], costs: Costs, ledger: Ledger, store: StoreAddress,
    data: dict[str, FoundData], cache: Path, slots: int, cluster: str | None, console: Console,
) -> int:
    from sweep.campaign import Campaign

    ledger.call("retire_stale").result()
    work = Path(store.folder) / "work" / sweep.name
    shutil.rmtree(work, ignore_errors=True)  # what an earlier driver left; the lock says that none is running
    config_text = yaml.safe_dump(sweep.model_dump(mode="json"), sort_keys=False)
    ledger.call("open_sweep", config_text, summary.plan_table(plan, usable), {name: found.record for name, found in data.items()}).result()
    scheduler = Scheduler(plan, usable, slots, drained=lambda: ledger.backlog == 0)
    server = None if store.tracking_uri.startswith("sqlite:") or cluster is None else store.tracking_uri
    common = {"git_commit": _git_commit()}
    interrupted = False
    with View(plan, scheduler.outcomes, costs, slots, console) as view:
        orders = {name: found.order for name, found in data.items()}
        campaign = Campaign(sweep, plan, scheduler, ledger, view, data=orders, work=work, common=common, server=server)
        if not scheduler.finished:
            interrupted = _stages(scheduler, campaign, cache, slots, cluster, console)
    new_rows = campaign.written()
    counts = {status: sum(1 for row in campaign.rows.values() if row.tags["status"] == status) for status in (OK, FAILED, SKIPPED)}
    outcome = "KILLED" if interrupted else "FAILED" if counts[FAILED] else "FINISHED"
    skipped = [row for row in campaign.rows.values() if row.tags["status"] == SKIPPED]
    ledger.call("log_table", "skipped.csv", summary.skipped_table(skipped))
    ledger.call("close_sweep", outcome, {f"cells_{status}": float(count) for status, count in counts.items()}).result()
    spooled = ledger.close()
    if not spooled:
        shutil.rmtree(work, ignore_errors=True)
    summary.print_end(console, sweep.name, campaign.rows.values(), counts, new_rows, len(plan.cells), store, spooled)
    if interrupted:
        console.print("Interrupted; the same command goes on from here.")
        return INTERRUPTED
    return FAILED_STATUS if counts[FAILED] else OK_STATUS


def _stages(scheduler: Scheduler, campaign: Any, cache: Path, slots: int, cluster: str | None, console: Console) -> bool:
    """Run what is left; True where it was interrupted."""
    import ray  # late: a plan, or a sweep that is done, needs none

    from sweep import actors, tune

    if cluster is None:
        tune.start_ray(None, slots, console.print)
    settings = actors.SiteSettings(str(cache), max(KEPT_WORKERS, 2 * slots), RECYCLE_BYTES, _passed_on())
    directory = actors.Directory.remote(settings, ray.get_runtime_context().get_node_id())  # type: ignore[attr-defined]
    try:
        tune.run(scheduler, campaign, directory, slots)
    except KeyboardInterrupt:
        with _deaf():  # the cleaning up is short, and half of it is worse than none
            console.print(f"Stopping: {campaign.interrupt()} running stages are recorded as interrupted.")
            return True
    finally:
        with _deaf(), contextlib.suppress(ray.exceptions.RayError):
            ray.get(directory.close.remote(), timeout=15)
        ray.shutdown()
    return False


def _join(cluster: str, slots: int, console: Console) -> Host:
    from sweep import actors, tune

    tune.start_ray(cluster, slots, console.print)
    return actors.cluster_host()


def _prepared(sweep: config.Sweep, name: str, cache: Path, console: Console) -> FoundData:
    wanted = sweep.data.get(name, config.Data())
    try:
        prepared, parts = prepared_data(name, wanted.path, wanted.allow_subset, cache)
    except (ValueError, OSError) as error:
        raise SweepError(f"data.{name}: {error}") from None
    found = f"{prepared.n_train} + {prepared.n_test} images from {prepared.source_kind} at {prepared.source_path}"
    console.print(f"{name}: {found}", soft_wrap=True)
    record = {field: value if isinstance(value, int | list | tuple) else str(value) for field, value in asdict(prepared).items()}
    return FoundData(
        PreparedData(name, prepared.digest, parts.digest, prepared.shape, len(prepared.classes)),
        DataOrder(name, wanted.path, wanted.allow_subset, prepared.digest, parts.digest, prepared.source_kind),
        record | {"splits": parts.digest},
    )


def _usable(plan: Plan, finished: dict[str, Finished], ledger: Ledger) -> dict[str, Finished]:
    """The finished stages of this plan whose artifacts are there as they were recorded."""
    candidates = reusable(plan, finished)
    answers = {key: ledger.call("missing", record.uri, record.digest) for key, record in candidates.items() if record.status == OK}
    kept = {key: record for key, record in candidates.items() if key not in answers or answers[key].result() is None}
    return reusable(plan, kept)


def _git_commit() -> str:
    """The commit of the source tree, with `+changes` where it differs; SWEEP_GIT_COMMIT, else "unknown", outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("SWEEP_GIT_COMMIT", "unknown")


def _passed_on() -> dict[str, str]:
    """Settings of the driver's environment that actors need too."""
    names = ("SWEEP_DATA", "SWEEP_CACHE", "SWEEP_HOST", "PYTHONPATH")
    return {name: os.environ[name] for name in names if name in os.environ}


@contextlib.contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM, which a cluster sends before it ends a pod, stops a sweep as Ctrl-C does."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ignore further interrupts for the length of the block."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
