"""Probes per second on a way from a framework to a runtime: all counts, from the draw to the verdict, but for the reproducers.

For each operator the stage as a sweep runs it, in the default toolchain and a warm worker, on one core; two cells at a time make it twice
as fast on two. Prints CPU seconds beside the clock's, since other load on the machine shows less in them.

    python benchmarks/probes.py [probes of each operator] [framework runtime format]...
"""

import os

os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="2")  # before NumPy is loaded, and for workers

import json
import sys
import tempfile
import time
from pathlib import Path

from sweep import toolchain
from sweep.contracts import Bench
from sweep.work import Work, probe
from sweep.workers import Limits, Pool, Shape

WAYS = [("tensorflow", "litert", "saved_model"), ("tensorflow", "onnxruntime", "onnx"), ("pytorch", "onnxruntime", "onnx")]
LIMITS = Limits(3600.0, 8 << 30)
probe.REPRODUCED = 0
SLOW = ("lstm", "gru")  # of TensorFlow, which traces every one of them anew; told apart in the last lines


def described(bench, kind, name):
    """The facts and the version of a component."""
    with bench.pool.borrow(bench.shape, bench.log) as worker:
        arguments = {"modules": {kind: [name]}, "packages": []}
        return worker.call("sweep.worker.describe:run", arguments, LIMITS, bench.log)[0][kind][name]


def settings(bench, framework, runtime, target, operator, count):
    frameworks, runtimes = described(bench, "frameworks", framework), described(bench, "runtimes", runtime)
    component = {"toolchain": toolchain.DEFAULT, "threads": 1, "lock": ""}
    options = {name: option["default"] for name, option in runtimes["facts"]["options"].items()}
    return {
        "toolchain": toolchain.DEFAULT, "operator": operator, "count": count, "seed": 0, "format": target, "quantization": "float32",
        "quantization_options": {},
        "exporter": component | {"module": framework, "version": frameworks["version"], "options": {}},
        "runtime": component | {"module": runtime, "version": runtimes["version"], "options": options},
    }


def cpu_seconds(pid):
    """Of a process so far, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(pool, root, way, operator, count):
    """(probes, seconds, CPU seconds of this process and the worker, faulty probes) of one cell."""
    log = root / "log.txt"
    log.touch()
    bench = Bench(pool, Shape(toolchain.default()), LIMITS, log)
    chosen = settings(bench, *way, operator, count)
    with pool.borrow(bench.shape, log) as worker:
        before = cpu_seconds(worker.pid) + time.process_time()
    folder = Path(tempfile.mkdtemp(dir=root))
    metrics = probe.run(Work(chosen, {}, None, folder, bench))["metrics"]
    with pool.borrow(bench.shape, log) as worker:
        after = cpu_seconds(worker.pid) + time.process_time()
    faulty = [record for record in json.loads((folder / "probes.json").read_text()) if record["verdict"] not in ("right", "unsupported")]
    return metrics["probes"], metrics["probes"] / metrics["probes_per_s"], after - before, len(faulty)


def main(count, ways):
    print(f"{'way':32} {'operator':18} {'probes':>6} {'faulty':>6} {'s':>8} {'CPU s':>8} {'per s':>7} {'per CPU s':>9}")
    with tempfile.TemporaryDirectory() as root:
        for way in ways:
            pool = Pool(keep=1, recycle_bytes=8 << 30)
            bench = Bench(pool, Shape(toolchain.default()), LIMITS, Path(root) / "log.txt")
            bench.log.touch()
            totals = {False: [0, 0.0, 0.0], True: [0, 0.0, 0.0]}
            for operator in described(bench, "frameworks", way[0])["facts"]["operators"]:
                probes, seconds, cpu, faulty = measured(pool, Path(root), way, operator, count)
                line(" → ".join(way[:2]), operator, probes, faulty, seconds, cpu)
                total = totals[operator in SLOW]
                totals[operator in SLOW] = [total[0] + probes, total[1] + seconds, total[2] + cpu]
            for slow, (probes, seconds, cpu) in totals.items():
                line(" → ".join(way[:2]), ", ".join(SLOW) if slow else "all others", probes, "", seconds, cpu)
            pool.close()
    return 0


def line(way, operator, probes, faulty, seconds, cpu):
    rates = f"{probes / seconds:7.1f} {probes / cpu:9.1f}"
    print(f"{way:32} {operator:18} {probes:6} {faulty:>6} {seconds:8.1f} {cpu:8.1f} {rates}", flush=True)


if __name__ == "__main__":
    given = sys.argv[2:]
    chosen = [tuple(given[at:at + 3]) for at in range(0, len(given), 3)]
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, chosen or WAYS))
