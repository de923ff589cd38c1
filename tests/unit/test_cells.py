"""A row of the table from the results of a cell's stages, with figures worked out by hand."""

from dataclasses import replace

import pytest

from sweep import cells
from sweep.records import Finished, Result

COMMON = {"git_commit": "abc", "dataset_source": "idx"}


def outcomes_of(made, **changes):
    """A result for every stage of a plan, by kind (for a conversion by kind and step); `changes` are further fields by the same name."""
    metrics = {
        "train": {"train_seconds": 10.0, "train_examples": 55000.0},
        "transplant": {"transplant_logit_diff_max": 1e-6},
        "convert_export": {"convert_seconds": 2.0, "model_size_bytes": 900.0},
        "convert_deploy": {"convert_seconds": 0.5, "model_size_bytes": 300.0},
        "evaluate_source": {"accuracy": 0.99, "float32_error_max": 2e-6, "model_size_bytes": 1000.0},
        "evaluate": {"accuracy": 0.97, "disagreement": 0.02, "model_size_bytes": 300.0, "eval_n": 10000.0},
        "simulate": {"simulated_examples": 200.0},
        "measure": {"latency_p50_ms": 1.5, "latency_ratio": 0.5},
        "attack": {"attack_seconds": 4.0, "robust_accuracy": 0.1, "attack_n": 500.0},
        "diagnose": {"residual_ratio_max": 0.5},
        "attack_carried": {"robust_accuracy": 0.2, "attack_n": 500.0},
    }
    found = {}
    for key, stage in made.stages.items():
        name = stage.kind
        if stage.kind == "convert":
            name += "_" + stage.settings["step"]
        if stage.kind == "evaluate" and "source" not in stage.inputs:
            name += "_source"
        if stage.kind == "attack" and "attack" in stage.inputs:
            name += "_carried"
        fields = {"status": "ok", "metrics": metrics[name], "facts": {"host": "here", "threads": "1", "runs_provider": name}}
        found[key] = Result(key, stage.kind, "attempt", **(fields | changes.get(name, {})))
    return found


def test_an_attack_that_another_undercuts_is_flagged(make_plan):
    made = make_plan({"attack": ["fgsm", "square"]})
    outcomes = outcomes_of(made)
    square = made.cells[1].stages["attack"]
    outcomes[square] = replace(outcomes[square], metrics={"robust_accuracy": 0.05, "attack_n": 500.0})
    rows = [cells.record(planned, made, outcomes, {}) for planned in made.cells]
    assert [row.tags.get("attack_flags") for row in rows] == ["undercut by a black box: square within eps 0.3 leaves 5.0%", None]
    outcomes[square] = replace(outcomes[square], status="failed", failure_class="attack_failed")
    assert "attack_flags" not in cells.record(made.cells[0], made, outcomes, {}).tags
    fgsm = made.cells[0].stages["attack"]
    found = {"robust_accuracy": 0.1, "attack_n": 500.0, "attacked": 10.0, "attack_zero_gradients": 9.0}
    outcomes[fgsm] = replace(outcomes[fgsm], metrics=found)
    assert cells.record(made.cells[0], made, outcomes, {}).tags["attack_flags"] == "zero gradients: of 9 of 10 inputs"


def test_another_frameworks_training_is_not_the_cells(make_plan):
    made = make_plan({"attack": ["fgsm", "fgsm(crafted_on=tensorflow)"]})
    own, carried = (cells.record(planned, made, outcomes_of(made), {}) for planned in made.cells)
    assert own.metrics["train_seconds"] == carried.metrics["train_seconds"] == 10.0
    assert carried.metrics["attack_seconds"] == 4.0


def test_the_row_of_a_converted_attacked_and_measured_cell(make_plan):
    made = make_plan(
        {"runtime": ["onnxruntime"], "quantization": ["static_int8"], "attack": ["fgsm"]}, measure={"reference": "litert"},
        transplant_via="tensorflow",
    )
    (planned,) = made.cells
    assert sorted(stage.kind for stage in made.stages.values()).count("convert") == 4  # two of them the reference's
    row = cells.record(planned, made, outcomes_of(made), COMMON)
    assert row.key == planned.key
    assert row.name == "pytorch-mnist-lenet5-static_int8-onnxruntime-localhost-fgsm-0"
    assert row.metrics == {
        "train_seconds": 10.0,
        "convert_seconds": 2.5,  # its own two edges, without those of the reference
        "attack_seconds": 4.0,
        "accuracy": 0.97, "disagreement": 0.02, "model_size_bytes": 300.0, "eval_n": 10000.0,
        "source_accuracy": 0.99, "float32_error_max": 2e-6,
        "latency_p50_ms": 1.5, "latency_ratio": 0.5, "residual_ratio_max": 0.5,
        "robust_accuracy": 0.2, "attack_n": 500.0,
    }
    assert row.tags == COMMON | {
        "status": "ok", "access": "transfer:same-weights", "host": "here", "threads": "1", "runs_provider": "evaluate",
    }
    assert row.params["route"] == "onnx"
    assert set(row.stages) == set(made.stages)


def test_the_row_of_a_native_cell_is_its_own_source(make_plan):
    made = make_plan()
    (planned,) = made.cells
    row = cells.record(planned, made, outcomes_of(made), {})
    assert row.metrics == {
        "train_seconds": 10.0, "accuracy": 0.99, "source_accuracy": 0.99, "float32_error_max": 2e-6, "model_size_bytes": 1000.0,
    }
    assert "access" not in row.tags


def test_what_a_measurement_says_becomes_tags(make_plan):
    made = make_plan(measure={})
    (planned,) = made.cells
    facts = {"energy": "not available: no counter", "latency_verdict": "tie", "load_average": "0.10", "clock_step_s": "1e-9"}
    row = cells.record(planned, made, outcomes_of(made, measure={"facts": facts}), {})
    assert {name: row.tags.get(name) for name in facts} == {
        "energy": "not available: no counter", "latency_verdict": "tie", "load_average": "0.10", "clock_step_s": None,
    }


def test_the_time_of_another_frameworks_training_is_not_the_rows(make_plan):
    made = make_plan({"weights": ["same"]}, same_weights_from="tensorflow")
    (planned,) = made.cells
    row = cells.record(planned, made, outcomes_of(made), {})
    assert "train_seconds" not in row.metrics
    assert row.metrics["accuracy"] == 0.97  # of its own evaluation
    (planned,) = (made := make_plan({"framework": ["tensorflow"], "weights": ["same"]}, same_weights_from="tensorflow")).cells
    assert cells.record(planned, made, outcomes_of(made), {}).metrics["train_seconds"] == 10.0  # its own


RATIOS = {"latency_p50_ms": 1.5, "latency_ratio": 0.5, "latency_ratio_low": 0.4, "latency_ratio_high": 0.6}


@pytest.mark.parametrize(("parity", "figures", "verdict"), [
    ("equal", RATIOS, "faster"),
    ("broken", {"latency_p50_ms": 1.5}, "withheld: it does not compute its source's function"),
])
def test_nothing_is_said_faster_that_computes_something_else(make_plan, parity, figures, verdict):
    made = make_plan({"runtime": ["onnxruntime"]}, measure={"reference": "native"})
    (planned,) = made.cells
    outcomes = outcomes_of(
        made, evaluate={"facts": {"parity": parity}}, measure={"metrics": RATIOS, "facts": {"latency_verdict": "faster"}},
    )
    row = cells.record(planned, made, outcomes, {})
    assert {name: value for name, value in row.metrics.items() if name.startswith("latency")} == figures
    assert (row.tags["parity"], row.tags["latency_verdict"]) == (parity, verdict)


def test_the_row_of_a_skipped_cell(make_plan):
    made = make_plan({"quantization": ["float16"], "attack": ["fgsm"]})
    (planned,) = made.cells
    row = cells.record(planned, made, {}, COMMON)
    assert row.tags == COMMON | {"status": "skipped", "reason": "native has no float16"}
    assert (row.metrics, list(row.stages)) == ({}, [])
    assert row.params["attack"] == "fgsm"


def test_the_row_of_a_failed_cell_names_the_stage_and_keeps_what_was_measured(make_plan):
    made = make_plan({"runtime": ["onnxruntime"], "attack": ["fgsm"]}, measure={"reference": "native"})
    (planned,) = made.cells
    lost = {"status": "failed", "failure_class": "upstream_failed", "metrics": {}, "facts": {}}
    broken = {"status": "failed", "failure_class": "convert_failed", "message": "no kernel", "metrics": {}}
    outcomes = outcomes_of(made, convert_deploy=broken, evaluate=lost, diagnose=lost, measure=lost, attack_carried=lost)
    row = cells.record(planned, made, outcomes, {})
    assert {name: row.tags[name] for name in ("status", "failure_class", "failed_stage", "message")} == {
        "status": "failed", "failure_class": "convert_failed", "failed_stage": "convert", "message": "no kernel",
    }
    assert row.metrics == {
        "train_seconds": 10.0, "convert_seconds": 2.0, "attack_seconds": 4.0, "source_accuracy": 0.99, "float32_error_max": 2e-6,
    }


def test_of_several_failures_the_first_in_the_graph_is_named(make_plan):
    made = make_plan({"runtime": ["onnxruntime"], "attack": ["fgsm"]})
    (planned,) = made.cells
    outcomes = outcomes_of(
        made, evaluate={"status": "failed", "failure_class": "load_failed"}, attack={"status": "failed", "failure_class": "attack_failed"},
    )
    assert cells.record(planned, made, outcomes, {}).tags["failure_class"] == "load_failed"


def test_a_row_of_finished_stages_is_that_of_fresh_results(make_plan):
    made = make_plan({"runtime": ["onnxruntime"], "attack": ["fgsm"]})
    (planned,) = made.cells
    fresh = outcomes_of(made)
    stored = {
        key: Finished(key, result.kind, "ok", "", "", "digest", dict(result.metrics) | {"stage_seconds": 3.0}, result.facts, "uri", 3.0)
        for key, result in fresh.items()
    }
    assert cells.record(planned, made, stored, {}) == cells.record(planned, made, fresh, {})


def test_stages_of_a_cell_stand_after_their_inputs(make_plan):
    made = make_plan({"runtime": ["litert"], "attack": ["fgsm"]}, measure={}, transplant_via="tensorflow")
    (planned,) = made.cells
    assert planned.reason is None
    keys = cells.stages_of(planned, made)
    assert sorted(keys) == sorted(made.stages)
    for number, key in enumerate(keys):
        assert set(made.stages[key].inputs.values()) <= set(keys[:number])
