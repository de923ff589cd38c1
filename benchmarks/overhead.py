"""What the machinery costs: seconds a stage, CPU by process, the driver's memory; and a mixed graph against its ideal.

    python benchmarks/overhead.py [--seeds 111] [--mixed]

The default runs a sweep of fake stages that take milliseconds (nine a seed, 1,000 at 111 seeds) with MLflow on, then the same command
again, which must find all of it done. `--mixed` runs a smaller graph whose stages take long enough to matter, measurements included.

The ideal of a graph is the sum of the stages' own seconds: those that may run side by side divided by the slots, measurements one by one.
A stage's own seconds are taken where it runs, without the way there and back.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

SLOTS = 2
STAGES_PER_SEED = 9  # 1 training, 1 export, 3 conversions, 4 evaluations
ROLES = (
    ("worker", "sweep.worker.serve"), ("guard", "sweep.worker.guard"), ("tracker", "multiprocessing.spawn"), ("driver", "sweep.launch"),
    ("site actors", "ray::SiteActor"), ("directory actor", "ray::Directory"), ("trial", "ray::ImplicitFunc"), ("trial", "ray::trial"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=111)
    parser.add_argument("--mixed", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_mixed(Path(folder)) if options.mixed else _many(Path(folder), options.seeds), indent=1))


def _many(folder: Path, seeds: int) -> dict:
    sweep = _sweep(folder, "overhead", {"seed": list(range(seeds)), "quantization": ["float32", "dynamic_int8", "static_int8"]})
    sweep["measure"] = {"enabled": False}
    first = _run(folder, sweep)
    stages = _stages(folder)
    again = _run(folder, sweep)
    wall = max(stage["ended"] for stage in stages) - min(stage["started"] for stage in stages)
    return {
        "stages": len(stages),
        "expected_stages": STAGES_PER_SEED * seeds,
        "seconds_per_stage": round(wall / len(stages), 4),
        "own_seconds_per_stage": round(sum(stage["seconds"] for stage in stages) / len(stages), 4),
        "cpu_ms_per_stage": {role: round(1e3 * seconds / len(stages), 1) for role, seconds in first["cpu"].items()},
        "driver_mb_at_start_and_end": first["driver_mb"],
        "driver_mb_per_1000_cells": round((first["driver_mb"][1] - first["driver_mb"][0]) / (3 * seeds) * 1000, 1),
        "whole_command_s": round(first["seconds"], 1),
        "same_command_again_s": round(again["seconds"], 1),
    }


def _mixed(folder: Path) -> dict:
    sweep = _sweep(folder, "mixed", {"seed": list(range(5)), "quantization": ["float32", "dynamic_int8"]})
    sweep["options"] = {"fake": {"sleep_s": 0.5}}
    sweep["measure"] = {"reference": "native", "processes": 3, "blocks": 10}
    _run(folder, sweep)
    stages = _stages(folder)
    alone = [stage for stage in stages if stage["kind"] == "measure"]
    beside = [stage for stage in stages if stage["kind"] != "measure"]
    ideal = sum(stage["seconds"] for stage in beside) / SLOTS + sum(stage["seconds"] for stage in alone)
    wall = max(stage["ended"] for stage in stages) - min(stage["started"] for stage in stages)
    drained = min(stage["started"] for stage in alone) - max(stage["ended"] for stage in beside)
    between = sorted(alone, key=lambda stage: stage["started"])
    gaps = [after["started"] - before["ended"] for before, after in itertools.pairwise(between)]
    shared = max(stage["ended"] for stage in beside) - min(stage["started"] for stage in beside)
    return {
        "stages": len(stages),
        "measurements": len(alone),
        "ideal_s": round(ideal, 2),
        "wall_s": round(wall, 2),
        "ratio": round(wall / ideal, 2),
        "stalls_s": {
            "side by side, over its ideal": round(shared - sum(stage["seconds"] for stage in beside) / SLOTS, 2),
            "from the last other stage to the first measurement": round(drained, 2),
            "between measurements": round(sum(gaps), 2),
            "sending a measurement and its result": round(sum(stage["ended"] - stage["started"] - stage["seconds"] for stage in alone), 2),
        },
    }


def _sweep(folder: Path, name: str, axes: dict) -> dict:
    grid = {"framework": ["fake"], "dataset": ["synthetic"], "architecture": ["linear"], "runtime": ["fake"], **axes}
    return {
        "name": name, "grid": grid, "train": {"epochs": 1}, "slots": SLOTS,
        "store": {"tracking_uri": f"sqlite:///{folder}/mlruns/mlflow.db"},
    }


def _run(folder: Path, sweep: dict) -> dict:
    """Run the command; its seconds, CPU seconds by role of process, and the driver's resident megabytes early and late."""
    path = folder / "sweep.yaml"
    path.write_text(json.dumps(sweep))  # JSON is YAML
    started = time.monotonic()
    environment = dict(os.environ, SWEEP_CACHE=str(folder / "cache"))
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "sweep.launch", str(path)], stdout=log, stderr=log, env=environment)
        cpu: dict[int, tuple[str, float]] = {}
        resident: list[float] = []
        while process.poll() is None:
            _sample(process.pid, cpu, resident, (folder / "log.txt").read_text().count("running:"))
            time.sleep(0.5)
    if process.returncode != 0:
        raise SystemExit((folder / "log.txt").read_text())
    by_role: dict[str, float] = defaultdict(float)
    for role, seconds in cpu.values():
        by_role[role] += seconds
    return {"seconds": time.monotonic() - started, "cpu": dict(by_role), "driver_mb": [resident[0], resident[-1]] if resident else [0, 0]}


def _sample(driver: int, cpu: dict[int, tuple[str, float]], resident: list[float], lines: int) -> None:
    for process in psutil.process_iter(["pid", "cmdline", "cpu_times"]):
        command, times = " ".join(process.info["cmdline"] or []), process.info["cpu_times"]
        role = next((role for role, mark in ROLES if mark in command), "ray itself" if "ray" in command else None)
        if role and times:
            cpu[process.info["pid"]] = (role, times.user + times.system)
    if lines:  # stages are running
        try:
            resident.append(round(psutil.Process(driver).memory_info().rss / 1e6, 1))
        except psutil.NoSuchProcess:
            return


def _stages(folder: Path) -> list[dict]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlruns/mlflow.db")
    experiment = client.get_experiment_by_name("stages")
    found, token = [], None
    while True:
        page = client.search_runs([experiment.experiment_id], max_results=5000, page_token=token)
        for run in page:
            seconds = run.data.metrics["stage_seconds"]
            times = {"started": run.info.start_time / 1e3, "ended": run.info.end_time / 1e3, "seconds": seconds}
            found.append({"kind": run.data.tags["stage"], **times})
        token = page.token
        if not token:
            return found


if __name__ == "__main__":
    main()
