"""One run of a sweep, from the validated file to the last row: data and facts, the plan, the stages, the table."""

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console

from sweep import attacks, facts, schema, summary, variants
from sweep.axes import NO_ATTACK, NOTHING, OWN_INPUTS
from sweep.cache import cache_folder
from sweep.campaign import Campaign
from sweep.errors import BrokenOff, ConfigError, StoreUnavailable, SweepError
from sweep.execution import prepared_data
from sweep.host import cpus, gpus, local_host
from sweep.interrupts import deaf
from sweep.ledger import Ledger, StoreAddress
from sweep.own_inputs import input_type
from sweep.plan import Host, Plan, PreparedData
from sweep.planning import make
from sweep.progress import Costs, View
from sweep.records import FAILED, OK, SKIPPED, DataOrder, Finished
from sweep.scheduling import Scheduler, reusable
from sweep.store import SQLITE, address

RECYCLE_BYTES = 4 << 30


class FoundData(NamedTuple):
    """A data set as the plan sees it, as a node finds it, and what is recorded of it."""

    planned: PreparedData
    order: DataOrder
    record: dict[str, Any]


class Machines(NamedTuple):
    """What the stages run on."""

    host: Host
    slots: int
    gpus: int
    cluster: bool  # a Ray cluster that was joined, rather than one of our own
    measures_apart: bool


@dataclass(frozen=True)
class Job:
    """A sweep with all that was found out before any work."""

    sweep: schema.Sweep
    store: StoreAddress
    cache: Path
    data: Mapping[str, FoundData]
    machines: Machines
    plan: Plan
    usable: Mapping[str, Finished]
    costs: Costs


class Outcome(NamedTuple):
    """How a run of a sweep ended."""

    failed: int
    spooled: int  # writes that MLflow has not taken yet
    interrupted: bool


def run(sweep: schema.Sweep, ray_address: str | None, plan_only: bool, console: Console) -> Outcome:
    """Run what is left of a sweep, or only print its plan. Raises SweepError before any work."""
    store, cache = address(sweep, owner=uuid.uuid4().hex[:12], reads_only=plan_only), cache_folder()
    with contextlib.ExitStack() as stack:
        starting = stack.enter_context(ThreadPoolExecutor(1)).submit(Ledger, store)  # MLflow takes seconds to load
        stack.callback(lambda: starting.exception() or starting.result().close())
        names = {name for grid in sweep.grid for name in grid.dataset} - {NOTHING}
        data = {name: _found(sweep, name, cache, console) for name in sorted(names)}
        known = facts.gather(cache, _wanted(sweep))
        for line in known.broken_toolchains():
            console.print(line, soft_wrap=True)
        ledger = starting.result()
        finished: dict[str, Finished] = ledger.call("scan").result()
        if waiting := ledger.call("waiting").result():
            raise StoreUnavailable(f"MLflow still refuses {waiting} writes of an earlier run, which wait in {store.folder}")
        machines = _machines(sweep, store, ray_address, console)
        plan = make(sweep, known, {name: found.planned for name, found in data.items()}, machines.host)
        job = Job(sweep, store, cache, data, machines, plan, _usable(plan, finished, ledger), Costs(finished))
        summary.print_plan(console, sweep.name, plan, job.usable, job.costs, machines.slots)
        if plan_only:
            return Outcome(0, 0, False)
        try:
            return _carry_out(job, ledger, console)
        except SweepError as error:
            raise BrokenOff(str(error)) from error


def _carry_out(job: Job, ledger: Ledger, console: Console) -> Outcome:
    ledger.call("retire_stale").result()
    work = Path(job.store.folder) / "work" / job.sweep.name
    shutil.rmtree(work, ignore_errors=True)  # what an earlier driver left; the lock says that none is running
    config_text = yaml.safe_dump(job.sweep.model_dump(mode="json"), sort_keys=False)
    records = {name: found.record for name, found in job.data.items()}
    ledger.call("open_sweep", config_text, summary.plan_table(job.plan, job.usable), records).result()
    machines = job.machines
    scheduler = Scheduler(job.plan, job.usable, machines.slots, lambda: ledger.backlog == 0, machines.measures_apart, machines.gpus)
    interrupted = False
    with View(job.plan, scheduler.outcomes, job.costs, job.machines.slots, console) as view:
        campaign = Campaign(
            job.sweep, job.plan, scheduler, ledger, view,
            data={name: found.order for name, found in job.data.items()},
            work=work,
            common={"git_commit": _git_commit()},
            server=job.store.tracking_uri if job.machines.cluster and not job.store.tracking_uri.startswith(SQLITE) else None,
        )
        if not scheduler.finished:
            interrupted = _stages(job, scheduler, campaign, work, console)
    with deaf():  # what has been done is written down
        return _conclude(job, campaign, ledger, work, interrupted, console)


def _stages(job: Job, scheduler: Scheduler, campaign: Campaign, work: Path, console: Console) -> bool:
    """Run what is left; True where it was interrupted."""
    import ray  # late: a plan, or a sweep that is done, needs none

    from sweep import actors, tune

    slots = job.machines.slots
    if not job.machines.cluster:
        tune.start_ray(None, slots * job.sweep.threads, job.machines.gpus)
    settings = actors.SiteSettings(str(job.cache), slots, RECYCLE_BYTES, _passed_on())
    directory = actors.Directory.remote(settings, ray.get_runtime_context().get_node_id())  # type: ignore[attr-defined]
    try:
        tune.run(scheduler, campaign, directory, slots, job.sweep.threads, work / "tune")
    except KeyboardInterrupt:
        with deaf():  # the cleaning up is short, and half of it is worse than none
            console.print(f"Stopping: {campaign.interrupt()} running stages are recorded as interrupted.")
            return True
    finally:
        with deaf(), contextlib.suppress(ray.exceptions.RayError):
            ray.get(directory.close.remote(), timeout=15)
        ray.shutdown()
    return False


def _conclude(job: Job, campaign: Campaign, ledger: Ledger, work: Path, interrupted: bool, console: Console) -> Outcome:
    new_rows = campaign.written()
    rows = [campaign.rows[planned.key] for planned in job.plan.cells if planned.key in campaign.rows]
    counts = {status: sum(1 for row in rows if row.tags["status"] == status) for status in (OK, FAILED, SKIPPED)}
    ledger.call("log_table", "skipped.csv", summary.skipped_table([row for row in rows if row.tags["status"] == SKIPPED]))
    ended_as = "KILLED" if interrupted else "FAILED" if counts[FAILED] else "FINISHED"
    ledger.call("close_sweep", ended_as, {f"cells_{status}": float(count) for status, count in counts.items()}).result()
    experiment = ledger.call("experiment").result()
    spooled = ledger.close()
    if not spooled:
        shutil.rmtree(work, ignore_errors=True)
    summary.print_end(console, job.sweep.name, rows, counts, new_rows, len(job.plan.cells), job.store, experiment, spooled)
    return Outcome(counts[FAILED], spooled, interrupted)


def _machines(sweep: schema.Sweep, store: StoreAddress, ray_address: str | None, console: Console) -> Machines:
    if ray_address is None:
        found = Machines(local_host(), sweep.slots or max(1, cpus() // sweep.threads), gpus(), cluster=False, measures_apart=False)
    else:
        from sweep import actors, tune

        try:
            tune.start_ray(ray_address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"--address: no Ray cluster at {ray_address!r} lets this driver in: {reason}") from None
        cluster = actors.cluster()
        console.print(f"joined the Ray cluster at {ray_address}: {cluster.cpus} CPUs on {cluster.nodes} nodes")
        if cluster.nodes > 1 and store.tracking_uri.startswith(SQLITE):
            message = f"a cluster of {cluster.nodes} nodes needs a tracking server, not {store.tracking_uri!r}"
            raise StoreUnavailable(f"store.tracking_uri: {message}")
        slots = sweep.slots or max(1, cluster.cpus // sweep.threads)
        found = Machines(cluster.host, slots, cluster.gpus, cluster=True, measures_apart=cluster.measures_apart)
    if sweep.processor == "gpu" and not found.gpus:
        raise ConfigError("processor: 'gpu', and there is no GPU here; 'auto' takes one where there is")
    if sweep.processor == "cpu":
        found = found._replace(host=found.host._replace(processor="cpu"), gpus=0)
    return found


def _found(sweep: schema.Sweep, name: str, cache: Path, console: Console) -> FoundData:
    wanted = sweep.data.get(name, schema.Data())
    own = name if OWN_INPUTS.fullmatch(name) else None
    path = (wanted.path or own) and str(Path(wanted.path or name).absolute())  # actors work in other folders
    try:
        prepared, parts = prepared_data(name, path, wanted.allow_subset, wanted.settings, cache)
    except (ValueError, OSError) as error:
        raise SweepError(f"data.{name}: {error}") from None
    found = f"{prepared.n_train} + {prepared.n_test} examples from {prepared.source_kind} at {prepared.source_path}"
    console.print(f"{name}: {found}", soft_wrap=True)
    record = {field: value if isinstance(value, int | list | tuple) else str(value) for field, value in asdict(prepared).items()}
    return FoundData(
        PreparedData(
            name, prepared.digest, parts.digest, prepared.shape, len(prepared.classes), prepared.vocabulary, input_type(prepared)
        ),
        DataOrder(
            name, path, wanted.allow_subset, prepared.digest, parts.digest, prepared.source_kind, tuple(sorted(wanted.settings.items()))
        ),
        record | {"splits": parts.digest},
    )


def _wanted(sweep: schema.Sweep) -> dict[str, set[str]]:
    """The frameworks and runtimes that a sweep names."""
    frameworks = {value for grid in sweep.grid for value in grid.framework}
    frameworks |= {value for grid in sweep.grid for attack in grid.attack for value in _crafted_on(sweep, attack)}
    frameworks |= {value for value in (sweep.same_weights_from, sweep.transplant_via, sweep.trace.against) if value}
    runtimes = {variants.base(value) for grid in sweep.grid for value in grid.runtime} | {sweep.measure.reference}
    models = {value for grid in sweep.grid for value in grid.model} - {NOTHING}
    return {"frameworks": frameworks - {NOTHING}, "runtimes": runtimes, "models": models}


def _crafted_on(sweep: schema.Sweep, attack: str) -> set[str]:
    return attacks.places(variants.base(attack), sweep.attack_settings(attack)) if attack != NO_ATTACK else set()


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
    found = {name: os.environ[name] for name in ("SWEEP_HOST", "PYTHONPATH") if name in os.environ}
    return found | {name: str(Path(os.environ[name]).absolute()) for name in ("SWEEP_DATA", "SWEEP_CACHE") if os.environ.get(name)}
