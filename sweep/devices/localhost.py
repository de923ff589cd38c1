"""The machine that the device's actor runs on: warm workers for outputs, fresh ones for measurements."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sweep import energy, timing
from sweep.contracts import Bench, Samples, Timed

if TYPE_CHECKING:
    from sweep.workers import Worker

FACTS = {"latency": True}
ENERGY_SECONDS = 1.0


def run(bench: Bench, function: str, arguments: Mapping[str, Any]) -> Any:
    """Run a function of `sweep.stages.evaluate` here."""
    with bench.pool.borrow(bench.shape, bench.log) as worker:
        return worker.call(function, arguments, bench.limits, bench.log)[0]


def measure(candidate: Timed, reference: Timed | None, processes: int, blocks: int, seed: int) -> Samples:
    """Blocks of the candidate, interleaved with those of the reference, in several fresh processes of each.

    Candidate and reference have a process each, so that neither is in the other's memory; one of the two runs at any time.
    """
    found = Samples()
    for process in range(processes):
        with _prepared(candidate) as (call, opened):
            found.opened.append(opened)
            timed = _block(call)
            with _reference(reference) as timed_reference:
                samples = timing.interleave(timed, timed_reference, seed * processes + process, blocks)
            found.candidate.append(samples["candidate"])
            if reference:
                found.reference.append(samples["reference"])
            found.batch_seconds.append(call("throughput"))
            if process == 0:
                _energy(found, call, samples["candidate"])
    found.facts |= {"clock_step_s": f"{timing.clock_step():.1e}"}
    return found


@contextlib.contextmanager
def _prepared(timed: Timed) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    bench = timed.bench
    with bench.pool.fresh(bench.shape, bench.log) as worker:
        yield _caller(bench, worker), worker.call("sweep.stages.measure:prepare", timed.arguments, bench.limits, bench.log)[0]


@contextlib.contextmanager
def _reference(timed: Timed | None) -> Iterator[Callable[[], float]]:
    """What times a block of the reference; where there is none, something that takes no time and is not kept."""
    if timed is None:
        yield lambda: 0.0
        return
    with _prepared(timed) as (call, _opened):
        yield _block(call)


def _block(call: Any) -> Callable[[], float]:
    """Warm the model, and return what times one block of it."""
    calls = call("warm_up")
    return lambda: call("block", calls=calls)


def _caller(bench: Bench, worker: "Worker") -> Any:
    return lambda name, **arguments: worker.call(f"sweep.stages.measure:{name}", arguments, bench.limits, bench.log)[0]


def _energy(found: Samples, call: Any, blocks: list[float]) -> None:
    """Energy per inference at batch 1, or the reason why it is not known."""
    reader = energy.reader()
    if isinstance(reader, energy.NotAvailable):
        found.facts["energy"] = f"not available: {reader.reason}"
        return
    calls = max(1, int(ENERGY_SECONDS / sorted(blocks)[len(blocks) // 2]))
    before = reader.read()
    call("block", calls=calls)
    found.energy_j = reader.joules(before, reader.read()) / calls
    found.facts["energy"] = "measured: the host's processors, idle power included"
