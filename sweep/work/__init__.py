"""The driver's half of each kind of stage, a module each: which workers do it, and what follows from what they made.

Each offers `run(work)`; what it imports is part of the stage's key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep.contracts import Bench

CORRUPTED = "corrupted"
"""The role of a set of corrupted test inputs."""
Outcome = dict[str, Any]
"""`metrics` by name, and where there are any `curves`, `facts`, and `runs`: what a runtime says of itself."""


@dataclass(frozen=True)
class Work:
    """What a kind of stage gets to do its work with."""

    settings: Mapping[str, Any]
    inputs: Mapping[str, str]  # folders by role
    data: Mapping[str, str] | None
    folder: Path
    bench: Bench

    @property
    def test_data(self) -> Mapping[str, str] | None:
        """The data set, with corrupted test inputs where the stage is of such."""
        if self.data is None or CORRUPTED not in self.inputs:
            return self.data
        return {**self.data, CORRUPTED: self.inputs[CORRUPTED]}

    def call(self, function: str, **arguments: Any) -> Any:
        """Run a function of a worker-side stage module in a warm worker."""
        with self.bench.pool.borrow(self.bench.shape, self.bench.log) as worker:
            return worker.call(f"sweep.stages.{function}", arguments, self.bench.limits, self.bench.log)[0]
