"""Calls of a worker for many things at once, of which one that ends or hangs the worker costs itself alone."""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sweep.errors import Raised, StageFailed
from sweep.probing.found import CRASHED, TIMED_OUT

FROM_OUTSIDE = ("preempted", "env_unavailable")
"""Failures of a worker that say nothing of what it was doing."""

Found = dict[str, Any]
Call = Callable[[list[int], str], Any]


def each(call: Call, count: int, seconds: float) -> list[Found]:
    """What became of each of `count` things: what the journal (`sweep.stages.probe`) says, or that it ended its worker, {"status":
    `crashed` or `timed_out`, "message"}.

    `call(numbers, journal)` has a worker do those with these numbers, and the worker counts them anew from 0. One that is begun for longer
    than `seconds` when the worker ends has timed out. Raises StageFailed where the worker's end says nothing of them, or a call does not
    work at all.
    """
    found: dict[int, Found] = {}
    queue = [list(range(count))]
    while queue:
        numbers = queue.pop(0)
        if not numbers:
            continue
        done, begun, failure = _attempt(call, numbers)
        found |= {numbers[at]: outcome for at, outcome in done.items()}
        if failure is None:
            continue
        suspects = [at for at in begun["begun"] if at not in done] if begun else []
        if not suspects:
            raise failure
        rest = [number for at, number in enumerate(numbers) if at not in done and at not in suspects]
        if len(numbers) > 1:  # alone it tells whether it was its own doing, or that of all that the worker had done before
            queue += [[numbers[at]] for at in suspects]
        else:
            late = failure.failure_class == "timeout" or time.monotonic() - begun["time"] >= seconds
            found[numbers[suspects[0]]] = {"status": TIMED_OUT if late else CRASHED, "message": failure.message}
        queue.append(rest)
    return [found[number] for number in range(count)]


def _attempt(call: Call, numbers: Sequence[int]) -> tuple[dict[int, Found], Found, StageFailed | None]:
    """By number what was done, what was begun last, and how it ended."""
    with tempfile.TemporaryDirectory(prefix="sweep-journal-") as folder:
        journal = Path(folder) / "journal"
        journal.touch()
        failure = None
        try:
            call(list(numbers), str(journal))
        except Raised:
            raise
        except StageFailed as error:
            if error.failure_class in FROM_OUTSIDE:
                raise
            failure = error
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
    done = {line.pop("done"): line for line in lines if "done" in line}
    begun = [line for line in lines if "begun" in line]
    return done, begun[-1] if begun else {}, failure
