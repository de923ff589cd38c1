"""Which stage starts next: a pure state machine over the plan's graph, that knows neither Ray nor MLflow.

Every stage that is ready may run beside others, but for measurements: they wait until nothing else is ready, then for the host to be
empty, and run one by one. Nothing rests on a measurement, so to take them last costs no other stage anything.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from sweep.errors import policy_of
from sweep.plan import Plan, Stage
from sweep.records import FAILED, READ, Finished, Result

EXCLUSIVE_KINDS = ("measure",)

Outcome = Result | Finished


class Scheduler:
    """Hands out stages and takes their results. `outcomes` holds what is decided, by stage key."""

    def __init__(
        self,
        plan: Plan,
        finished: Mapping[str, Finished],
        slots: int,
        drained: Callable[[], bool] = lambda: True,
        apart: bool = False,
        gpus: int = 0,
    ) -> None:
        """`finished` is what earlier sweeps have done; `drained` says whether the host is quiet enough for a measurement; `apart`,
        whether measurements have a host of their own, so that they go one by one beside all else. `slots` is for all stages together,
        `gpus` for those of them that need one; what waits for a GPU holds back nothing else."""
        self._plan = plan
        self._slots = slots
        self._drained = drained
        self._apart = apart
        self._gpus = gpus
        self._ready_gpu: list[tuple[int, int, str]] = []
        self._attempts: Counter[str] = Counter()
        self._below: dict[str, list[str]] = {key: [] for key in plan.stages}
        self._ready: list[tuple[int, int, str]] = []
        self._ready_exclusive: list[tuple[int, int, str]] = []
        self.running: dict[str, Stage] = {}
        self.outcomes: dict[str, Outcome] = {}
        for key, stage in plan.stages.items():
            for above in set(stage.inputs.values()):
                self._below[above].append(key)
        self._height = self._heights()
        self._order = {key: number for number, key in enumerate(plan.stages)}
        self.outcomes.update(reusable(plan, finished))
        self._waits_for = {key: set(stage.inputs.values()) - self.outcomes.keys() for key, stage in plan.stages.items()}
        for key in plan.stages:
            if key not in self.outcomes and not self._waits_for[key]:
                self._make_ready(key)
            elif key in self.outcomes and self.outcomes[key].status == FAILED:
                self._fail_below(key)

    @property
    def total(self) -> int:
        return len(self._plan.stages)

    @property
    def finished(self) -> bool:
        return len(self.outcomes) == self.total

    def next(self) -> Stage | Literal["wait"]:
        """The stage to start now, "wait" while none can. Not to be asked once `finished`."""
        measuring = any(stage.kind in EXCLUSIVE_KINDS for stage in self.running.values())
        if len(self.running) >= self._slots or (measuring and not self._apart):
            return "wait"
        if self._apart and self._ready_exclusive and not measuring:
            return self._start(self._ready_exclusive)
        if self._ready_gpu and sum(stage.gpu for stage in self.running.values()) < self._gpus:
            return self._start(self._ready_gpu)
        if self._ready:
            return self._start(self._ready)
        if self._ready_exclusive and not self.running and self._drained():
            return self._start(self._ready_exclusive)
        return "wait"

    def take(self, key: str, result: Result) -> list[str]:
        """The result of a stage that was handed out. Returns the stages that it decides: itself, and where it failed for good all
        that rest on it; none where it is tried again."""
        del self.running[key]
        if result.status == FAILED and self._attempts[key] <= policy_of(result.failure_class).retries:
            self._make_ready(key)
            return []
        return [key, *self._decide(key, result)]

    def attempt(self, key: str) -> int:
        """How often a stage was handed out."""
        return self._attempts[key]

    def _start(self, queue: list[tuple[int, int, str]]) -> Stage:
        _priority, _number, key = heapq.heappop(queue)
        self._attempts[key] += 1
        self.running[key] = self._plan.stages[key]
        return self.running[key]

    def _make_ready(self, key: str) -> None:
        """What most work rests on goes first."""
        stage = self._plan.stages[key]
        queue = self._ready_exclusive if stage.kind in EXCLUSIVE_KINDS else self._ready_gpu if stage.gpu else self._ready
        heapq.heappush(queue, (-self._height[key], self._order[key], key))

    def _decide(self, key: str, outcome: Outcome) -> list[str]:
        self.outcomes[key] = outcome
        if outcome.status == FAILED:
            return self._fail_below(key)
        for below in self._below[key]:
            self._waits_for[below].discard(key)
            if not self._waits_for[below] and below not in self.outcomes:
                self._make_ready(below)
        return []

    def _fail_below(self, key: str) -> list[str]:
        """What rests on a failed stage has failed too, and says on which."""
        failed = self._plan.stages[key]
        message = f"{failed.kind} of {failed.label}: {self.outcomes[key].failure_class}"
        queue, decided = list(self._below[key]), []
        while queue:
            below = queue.pop()
            if below not in self.outcomes:
                decided.append(below)
                kind = self._plan.stages[below].kind
                self.outcomes[below] = Result(below, kind, "", FAILED, failure_class="upstream_failed", message=message)
                queue.extend(self._below[below])
        return decided

    def _heights(self) -> dict[str, int]:
        heights: dict[str, int] = {}
        for key in reversed(list(self._plan.stages)):
            heights[key] = 1 + max((heights[below] for below in self._below[key]), default=0)
        return heights


def reusable(plan: Plan, finished: Mapping[str, Finished]) -> dict[str, Finished]:
    """What earlier sweeps have done of this plan: successes, and failures that the environment is not to blame for.

    A record counts only on top of inputs that count, with the digests that it read: training again may give other weights.
    """
    found: dict[str, Finished] = {}
    for key, stage in plan.stages.items():
        record = finished.get(key)
        if record is None or (record.status == FAILED and not policy_of(record.failure_class).final):
            continue
        if all(above in found and record.facts.get(READ + role) == found[above].digest for role, above in stage.inputs.items()):
            found[key] = record
    return found
