"""The tables on deployed models, from rows made by hand."""

import pandas

from sweep import deployment
from sweep.deployment import Flip
from sweep.records import CellRecord


def row(key, parity=None, status="ok", metrics=None, tags=None, **params):
    axes = {
        "framework": "pytorch", "framework_version": "2.0", "dataset": "mnist", "architecture": "lenet5", "recipe": "defaults",
        "weights": "trained", "control": "none", "seed": 0, "runtime": "litert", "runtime_version": "2.3", "quantization": "float32",
        "route": "tflite", "device": "localhost", "attack": "none",
    }
    told = {"status": status} | ({"parity": parity} if parity else {}) | (tags or {})
    return CellRecord(key, key, axes | params, told, metrics or {}, [])


def test_the_worst_verdict_of_a_network_stands_in_the_matrix():
    rows = [
        row("a", "equal"), row("b", "degraded", seed=1, tags={"deployed_diagnosis": "padding at conv1 (conv2d)"}),
        row("c", "equal", architecture="gru"), row("d", "equal", runtime="native", route="native"),
        row("e", status="skipped", tags={"reason": "no way"}, runtime="openvino", runtime_version=""),
        row("f", status="failed", tags={"failure_class": "convert_failed", "message": "no GRU"}, runtime="litert(resolver=reference)"),
    ]
    sheet = deployment.matrix(rows)
    assert sheet.data == [
        {"framework": "pytorch 2.0", "runtime": "litert 2.3", "quantization": "float32", "lenet5": "degraded (padding at conv1 (conv2d))", "gru": "equal"},
        {"framework": "pytorch 2.0", "runtime": "openvino", "quantization": "float32", "lenet5": "skipped", "gru": ""},
        {"framework": "pytorch 2.0", "runtime": "litert 2.3 (resolver=reference)", "quantization": "float32", "lenet5": "convert_failed", "gru": ""},
    ]


def test_a_line_of_a_deployment():
    metrics = {"accuracy": 0.5, "source_accuracy": 0.75, "disagreement": 0.25, "logit_diff_max": 0.125, "model_size_bytes": 2000.0}
    sheet = deployment.deployments([row("a", "degraded", metrics=metrics, tags={"parity_reason": "why"}), row("b", status="failed")])
    (line,) = sheet.data
    assert (line["accuracy"], line["disagreement"], line["parity"], line["reason"]) == (0.5, 0.25, "degraded", "why")
    (shown,) = sheet.shown
    assert (shown["accuracy"], shown["of source"], shown["flips"], shown["max"], shown["KB"]) == ("50.00", "75.00", "25.00", "0.125", "2")


def test_users_own_files_stand_under_their_names():
    params = {"model": "/models/net.onnx", "dataset": "x.npz", "runtime": "openvino", "runtime_version": "2026.4", "quantization": "float32",
              "route": "onnx", "attack": "none"}
    own = CellRecord("o", "o", params, {"status": "ok", "parity": "broken", "deployed_diagnosis": "output_order at outputs (tensor)"}, {}, [])
    assert deployment.matrix([own]).data == [{
        "framework": "own file", "runtime": "openvino 2026.4", "quantization": "float32",
        "net.onnx": "broken (output_order at outputs (tensor))",
    }]


def test_a_wrong_conversion_is_not_hidden_by_a_failure():
    failed = row("b", status="failed", tags={"failure_class": "out_of_memory", "message": "", "failed_stage": "diagnose"})
    assert deployment.worst([row("a", "broken"), failed]) == "broken"
    assert deployment.worst([row("a", "equal"), failed]) == "out_of_memory"


def test_flips_are_told_by_input_across_conversions():
    rows = [row("a"), row("b", quantization="int8"), row("c", quantization="int4")]
    changed = {"b": [Flip(7, 3, 3, 0.5, 5, 0.25)], "c": [Flip(7, 3, 3, 0.5, 8, 1.5), Flip(2, 1, 1, 0.1, 7, 0.1)]}
    first, second = deployment.flips(rows, changed).data
    assert (first["index"], first["changed by"], first["conversions"]) == (7, 2, 3)
    assert first["to"] == "litert 2.3 int8: 5 (margin 0.25); litert 2.3 int4: 8 (margin 1.5)"
    assert (second["index"], second["label"], second["source's answer"], second["changed by"]) == (2, 1, 1, 1)


def test_flips_from_the_outcomes_of_two_evaluations():
    source = pandas.DataFrame({"index": [4, 5, 9], "label": [1, 2, 3], "prediction": [1, 2, 2], "margin": [3.0, 2.0, 1.0]})
    other = pandas.DataFrame({"index": [9, 4, 5], "label": [3, 1, 2], "prediction": [3, 1, 0], "margin": [0.5, 3.0, 0.25]})
    assert deployment.flips_between(source, other) == [Flip(5, 2, 2, 2.0, 0, 0.25), Flip(9, 3, 2, 1.0, 3, 0.5)]
