"""The study's claims about arithmetic, on every framework that is installed: the same weights in all seven networks, and fifty equal steps."""

from pathlib import Path
from typing import Any

import pytest
from sweeps import Store

from sweep import toolchain
from sweep.cache import cache_folder
from sweep.installation import install

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
RUN_SECONDS = 6000.0
IMAGES = {"dataset": ["mnist"], "architecture": ["lenet1", "lenet5"]}
COLOURS = {"dataset": ["cifar10"], "architecture": ["resnet20", "vgg16"]}
TEXTS = {"dataset": ["imdb"], "architecture": ["textcnn", "lstm", "gru"]}
SHORT = {"imdb": {"settings": {"length": 40}}}
ADAM = {"optimizer": "adam", "learning_rate": 0.001}


@pytest.fixture(scope="module")
def frameworks() -> list[str]:
    """The default toolchain's and the first value of each other's, all of them installed."""
    definitions = list(toolchain.definitions().values())
    for definition in definitions:
        install(definition, print)
    return ["tensorflow", "pytorch", *(min(definition.frameworks, key=len) for definition in definitions if definition.frameworks)]


def rows(store: Store, name: str, **content: Any) -> list[Any]:
    command = store.start(store.write(name, measure={"enabled": False}, **content))
    assert command.wait(RUN_SECONDS) == 0, command.output
    return [run.data for run in store.cells(name).values()]


def test_the_same_weights_give_the_same_logits_in_all_seven_networks(frameworks: list[str], tmp_path: Path) -> None:
    """Within eight times the master's own float32 error on 1,000 real inputs, and no disagreement where its margin exceeds twice that."""
    grid = [kind | {"framework": frameworks, "weights": ["same"], "recipe": ["matched"]} for kind in (IMAGES, COLOURS, TEXTS)]
    found = rows(
        Store(tmp_path / "store", cache_folder()), "same", grid=grid, data=SHORT, same_weights_from="tensorflow",
        train={"epochs": 1, "examples": 300, "batch_size": 32, "test_examples": 1000},
        settings={"architecture": {"vgg16": {"learning_rate": 0.01, "examples": 64}, "textcnn": ADAM, "lstm": ADAM, "gru": ADAM}},
    )
    taken = [row for row in found if row.params["framework"] != "tensorflow"]
    assert len(taken) == 7 * (len(frameworks) - 1)
    for row in taken:
        name = f"{row.params['architecture']} in {row.params['framework']}"
        assert row.metrics["eval_n"] == 1000, name
        assert row.metrics["logit_diff_max"] <= row.metrics["parity_tolerance"], name
        assert row.metrics["parity_decided_disagreements"] == 0, name
        assert (row.tags["parity"], row.tags["proof"]) == ("equal", "holds"), name


def test_no_formula_differs_over_fifty_equal_steps(frameworks: list[str], tmp_path: Path) -> None:
    """SGD with momentum on images, Adam on texts: in float64 losses agree to 1e-8. In float32 frameworks part, and no wider than they do
    from their own float64, or from themselves when they start one ulp away."""
    grid = [
        IMAGES | {"framework": frameworks, "recipe": ["identical"]},
        {"dataset": ["cifar10"], "architecture": ["resnet20"], "framework": frameworks, "recipe": ["identical"]},
        TEXTS | {"framework": frameworks, "recipe": ["identical"]},
    ]
    found = rows(
        Store(tmp_path / "store", cache_folder()), "steps", grid=grid, data=SHORT, trace={"steps": 50, "against": "tensorflow"},
        train={"epochs": 1, "examples": 1000, "batch_size": 32, "learning_rate": 0.05, "momentum": 0.9, "test_examples": 100},
        settings={"architecture": {
            "resnet20": {"learning_rate": 0.001, "batch_size": 16, "examples": 200}, "textcnn": ADAM, "lstm": ADAM, "gru": ADAM,
        }},
        evaluate={"reference_examples": 20},
    )
    traced = [row for row in found if row.params["framework"] != "tensorflow"]
    assert len(traced) == 6 * (len(frameworks) - 1)
    for row in traced:
        name = f"{row.params['architecture']} in {row.params['framework']}: {row.tags['training']}"
        assert row.metrics["trace_loss_diff_rel_float64"] <= 1e-8, name
        arithmetic = max(row.metrics["trace_loss_diff_one_ulp_max"], row.metrics["trace_loss_diff_rounding_max"], 1e-6)
        assert row.metrics["trace_loss_diff_max"] <= 5 * arithmetic, name
