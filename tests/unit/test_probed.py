"""Tables of probes, from rows and records made up here."""

from sweep import probed
from sweep.records import CellRecord


def row(key, wrong=0, status="ok", tags=None, metrics=None, **params):
    axes = {
        "operator": "conv2d", "framework": "tensorflow", "framework_version": "2.0", "runtime": "litert", "runtime_version": "2.3",
        "quantization": "float32", "route": "tflite",
    }
    counted = {"probes": 3, "probes_right": 3 - wrong, "probes_wrong": wrong} | (metrics or {})
    return CellRecord(key, key, axes | params, {"status": status} | (tags or {}), counted, [])


def record(number, verdict, fault=None, framework="right", **parameters):
    return {"id": number, "verdict": verdict, "fault": fault, "framework": framework, "parameters": parameters}


ROWS = [
    row("new"), row("old", wrong=2, runtime="litert@2.1", runtime_version="2.1"),
    row("other", runtime="tfjs(backend=cpu)", runtime_version="4.22", runtime_backend="cpu", metrics={"probes_crashed": 1}),
    row("none", status="skipped", operator="lstm", tags={"reason": "no way"}),
    row("failed", status="failed", operator="lstm", runtime_version="2.1", runtime="litert@2.1", tags={"failure_class": "timeout"}),
    CellRecord("network", "network", {"architecture": "lenet5"}, {"status": "ok"}, {}, []),
]


def test_operators_by_runtime_and_version():
    first, second = probed.operators(ROWS).data
    assert first == {
        "operator": "conv2d", "framework": "tensorflow 2.0", "quantization": "float32", "litert 2.3": "3 / 0 / 0", "litert 2.1": "1 / 2 / 0",
        "tfjs 4.22 (backend=cpu)": "3 / 0 / 0, 1 crashed",
    }
    assert (second["operator"], second["litert 2.3"], second["litert 2.1"]) == ("lstm", "skipped", "timeout")


def test_faults_with_what_decides():
    records = {
        "new": [record(1, "right"), record(2, "right"), record(3, "right")],
        "old": [record(1, "wrong", "padding_windows"), record(2, "wrong", "padding_windows", framework="wrong"), record(3, "right")],
        "other": [record(1, "crashed", "crashed", function="elu"), record(2, "unsupported"), record(3, "right")],
    }
    padding, crash = probed.faults(ROWS, records).data
    assert (padding["operator"], padding["runtime"], padding["fault"], padding["probes"]) == ("conv2d", "litert 2.1", "padding_windows", 2)
    assert padding["in the framework too"] == 1
    assert padding["decides"] == "wrong with version=2.1, right with version=2.3"
    assert (crash["fault"], crash["decides"]) == ("elu-crashed", "")
