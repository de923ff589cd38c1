"""What a user sees while a sweep runs: a live table on a terminal, plain lines elsewhere."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweep.plan import Plan, Stage
from sweep.records import FAILED, OK, Finished, Result
from sweep.scheduling import EXCLUSIVE_KINDS, Outcome

LINE_SECONDS = 5.0
LONG_MESSAGE = 160


class Costs:
    """Expected seconds of a stage, from stages of the same kind and backend, else of the same kind; None where none is known."""

    def __init__(self, finished: Mapping[str, Finished]) -> None:
        self._sums: dict[tuple[str, ...], tuple[float, int]] = {}
        for record in finished.values():
            if record.status == OK:
                self.add(record.kind, record.facts.get("backend", ""), record.seconds)

    def add(self, kind: str, backend: str, seconds: float) -> None:
        for group in ((kind, backend), (kind,)):
            total, count = self._sums.get(group, (0.0, 0))
            self._sums[group] = (total + seconds, count + 1)

    def of(self, stage: Stage) -> float | None:
        backend = str(stage.settings.get("framework") or stage.settings.get("runtime"))
        for group in ((stage.kind, backend), (stage.kind,)):
            if group in self._sums:
                total, count = self._sums[group]
                return total / count
        return None

    def remaining(self, stages: Sequence[Stage], slots: int) -> float | None:
        """Seconds for these stages: measurements one by one, the others `slots` at a time; None where nothing is known of any."""
        known = [(stage, cost) for stage in stages if (cost := self.of(stage)) is not None]
        if not known and stages:
            return None
        alone = sum(cost for stage, cost in known if stage.kind in EXCLUSIVE_KINDS)
        return alone + sum(cost for stage, cost in known if stage.kind not in EXCLUSIVE_KINDS) / slots


class View:
    """Follows the stages of one run of a sweep."""

    def __init__(self, plan: Plan, outcomes: Mapping[str, Outcome], costs: Costs, slots: int, console: Console) -> None:
        self._plan, self._outcomes, self._costs, self._slots, self._console = plan, outcomes, costs, slots, console
        self._running: dict[str, tuple[Stage, float]] = {}
        self._reused = len(outcomes)
        self._said = 0.0
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=2) if console.is_terminal else None

    def __enter__(self) -> "View":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._live:
            self._live.stop()
        else:
            self._line()

    def started(self, stage: Stage) -> None:
        self._running[stage.key] = (stage, time.monotonic())
        if not self._live and time.monotonic() - self._said > LINE_SECONDS:
            self._line()

    def ended(self, stage: Stage, result: Result, final: bool) -> None:
        self._running.pop(stage.key, None)
        if result.ok:
            self._costs.add(result.kind, result.facts.get("backend", ""), result.seconds)
        else:
            again = "" if final else "; trying again"
            message = f"{stage.kind} of {stage.label}: {result.failure_class}: {result.message[:LONG_MESSAGE]}{again}"
            self._console.print(Text(message, style="red"))

    def _line(self) -> None:
        self._said = time.monotonic()
        done, failed = self._counts()
        total = Counter(stage.kind for stage in self._plan.stages.values())
        kinds = ", ".join(f"{kind} {done[kind]}/{total[kind]}" for kind in total)
        running = ", ".join(f"{stage.kind} {stage.label}" for stage, _since in self._running.values()) or "nothing"
        line = f"{kinds}; stages failed {sum(failed.values())}; running: {running}{self._eta()}"
        self._console.print(line, soft_wrap=True, highlight=False)

    def _counts(self) -> tuple[Counter[str], Counter[str]]:
        done: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for key, outcome in list(self._outcomes.items()):
            if outcome.failure_class != "upstream_failed":  # it never ran
                (failed if outcome.status == FAILED else done)[self._plan.stages[key].kind] += 1
        return done, failed

    def _eta(self) -> str:
        left = [stage for key, stage in self._plan.stages.items() if key not in self._outcomes]
        seconds = self._costs.remaining(left, self._slots) if left else None
        return "" if seconds is None else f"; about {duration(seconds)} left"

    def _render(self) -> Group:
        done, failed = self._counts()
        running = Counter(stage.kind for stage, _since in list(self._running.values()))
        table = Table(box=None, pad_edge=False)
        for column in ("stage", "done", "running", "failed", "of"):
            table.add_column(column, justify="left" if column == "stage" else "right")
        for kind, count in Counter(stage.kind for stage in self._plan.stages.values()).items():
            table.add_row(kind, str(done[kind]), str(running[kind]), str(failed[kind]), str(count))
        now = time.monotonic()
        flight = [f"  {stage.kind} {stage.label} ({duration(now - since)})" for stage, since in list(self._running.values())]
        reused = f"{self._reused} stages were done before{self._eta()}"
        return Group(table, Text("\n".join([*flight, reused]), no_wrap=True, overflow="ellipsis"))


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
