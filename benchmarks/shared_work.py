"""What sharing saves: a sweep as it is, against the same cells run as independent trials, in one run of this script.

    python benchmarks/shared_work.py [CONFIG] [key=value ...]        (configs/quickstart.yaml)

Independent means that every cell has a training, conversions, evaluations, attack and measurement of its own, as where a cell is a
trial. Both go through the same scheduler and warm workers, so the difference is the work, not the machinery.
"""

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sweep import driver, launch
from sweep.plan import Plan, Stage, digest


def main(arguments: list[str]) -> None:
    config, overrides = (arguments[0], arguments[1:]) if arguments else ("configs/quickstart.yaml", [])
    make, seconds, stages = driver.make, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("SWEEP_CACHE", str(Path(folder) / "cache"))
        for name, rewrite in (("shared", lambda plan: plan), ("independent", _independent)):
            driver.make = lambda *inputs, rewrite=rewrite, name=name: _counted(rewrite(make(*inputs)), name, stages)
            started = time.monotonic()
            status = launch.main([config, *overrides, f"store.tracking_uri=sqlite:///{folder}/{name}/mlflow.db"])
            seconds[name] = time.monotonic() - started
            if status != 0:
                raise SystemExit(f"the {name} run ended with status {status}")
    print(f"shared:      {stages['shared']:5d} stages, {seconds['shared']:7.1f} s")
    print(f"independent: {stages['independent']:5d} stages, {seconds['independent']:7.1f} s")
    print(f"ratio: {seconds['independent'] / seconds['shared']:.2f}")


def _counted(plan: Plan, name: str, stages: dict[str, int]) -> Plan:
    stages[name] = len(plan.stages)
    return plan


def _independent(plan: Plan) -> Plan:
    """The same cells, each with copies of its stages under keys of its own."""
    stages: dict[str, Stage] = {}
    cells = []
    for number, cell in enumerate(plan.cells):
        own = {key: digest(key, number) for role_key in cell.stages.values() for key in plan.upstream(role_key)}
        for key, copy in own.items():
            stage = plan.stages[key]
            stages[copy] = replace(stage, key=copy, inputs={role: own[above] for role, above in stage.inputs.items()})
        cells.append(replace(cell, stages={role: own[key] for role, key in cell.stages.items()}))
    return Plan(cells, stages)


if __name__ == "__main__":
    main(sys.argv[1:])
