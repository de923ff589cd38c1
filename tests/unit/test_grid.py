"""Cells counted by hand, and every reason why one can't run."""

import sys
import types
from dataclasses import replace

import pytest

from sweep import grid, layers, support
from sweep.errors import ConfigError
from sweep.grid import DatasetFacts
from sweep.support import Route


def named(cells):
    return [(cell.framework, cell.runtime, cell.quantization, cell.attack, cell.seed) for cell in cells]


def test_a_grid_is_the_product_of_its_axes(make_sweep):
    axes = {"framework": ["pytorch", "tensorflow"], "runtime": ["native", "onnxruntime"], "seed": [0, 1, 2], "attack": ["none", "fgsm"]}
    sweep = make_sweep(axes)
    cells = grid.expand(sweep)
    assert len(cells) == len(set(cells)) == 2 * 2 * 3 * 2
    assert named(cells[:3]) == [
        ("pytorch", "native", "float32", "none", 0), ("pytorch", "native", "float32", "fgsm", 0),
        ("pytorch", "onnxruntime", "float32", "none", 0),
    ]
    assert cells[0].axes() == {
        "framework": "pytorch", "dataset": "mnist", "architecture": "lenet5", "recipe": "defaults", "seed": 0, "weights": "trained",
        "control": "none", "runtime": "native", "quantization": "float32", "device": "localhost", "corruption": "none", "attack": "none",
    }


def test_joined_grids_hold_each_cell_once(make_sweep):
    """4 and 6 cells, of which pytorch in float32 on both runtimes is in either."""
    sweep = make_sweep(
        [
            {"framework": ["pytorch", "tensorflow"], "runtime": ["native", "onnxruntime"]},
            {"framework": ["pytorch"], "runtime": ["native", "onnxruntime"], "quantization": ["float32", "float16", "static_int8"]},
        ]
    )
    assert named(grid.expand(sweep)) == [
        ("pytorch", "native", "float32", "none", 0), ("pytorch", "onnxruntime", "float32", "none", 0),
        ("tensorflow", "native", "float32", "none", 0), ("tensorflow", "onnxruntime", "float32", "none", 0),
        ("pytorch", "native", "float16", "none", 0), ("pytorch", "native", "static_int8", "none", 0),
        ("pytorch", "onnxruntime", "float16", "none", 0), ("pytorch", "onnxruntime", "static_int8", "none", 0),
    ]


def test_a_rule_excludes_what_fits_all_its_axes(make_sweep):
    """Of 2 x 2 x 3 cells the first rule takes 2 (pytorch, onnxruntime, seeds 1 and 2), the second 4 (seed 0), 1 of them not."""
    sweep = make_sweep(
        {"framework": ["pytorch", "tensorflow"], "runtime": ["native", "onnxruntime"], "seed": [0, 1, 2]},
        exclude=[{"framework": "pytorch", "runtime": "onnxruntime", "seed": [1, 2]}, {"seed": 0}],
    )
    assert named(grid.expand(sweep)) == [
        ("pytorch", "native", "float32", "none", 1), ("pytorch", "native", "float32", "none", 2),
        ("tensorflow", "native", "float32", "none", 1), ("tensorflow", "onnxruntime", "float32", "none", 1),
        ("tensorflow", "native", "float32", "none", 2), ("tensorflow", "onnxruntime", "float32", "none", 2),
    ]


def why_not(make_sweep, facts, axes, architecture="lenet5", shape=(28, 28, 1), **content):
    sweep = make_sweep({"architecture": [architecture]} | axes, **content)
    (cell,) = grid.expand(sweep)
    try:
        network = grid.layers_of(cell.architecture, DatasetFacts(shape, 10))
    except ValueError as error:
        network = error
    return support.unsupported(cell, sweep, facts, network)


AFTER = {"gru": {"reset_after": [True]}}


def recurrent(input_shape, classes):
    """A network over the rows of an image."""
    return [
        layers.image_input(*input_shape), layers.flatten("flatten", "input"), layers.dense("dense", "flatten", 10),
        layers.tokens(5, 20, "unused"), layers.embedding("embedding", "unused", 20, 4), layers.gru("gru", "embedding", 3),
        layers.concatenate("both", "dense", "gru"), layers.dense("logits", "both", classes),
    ]


NO_WAY = "pytorch exports no saved_model or tflite, which litert needs"


@pytest.mark.parametrize(
    ("axes", "changes", "content", "reason"),
    [
        ({}, {}, {}, None),
        ({"runtime": ["onnxruntime"], "quantization": ["static_int8"], "attack": ["pgd"]}, {}, {}, None),
        ({"runtime": ["litert"]}, {}, {"transplant_via": "tensorflow"}, None),
        ({"runtime": ["litert"]}, {}, {}, NO_WAY),
        ({"runtime": ["litert"]}, {}, {"transplant_via": "fake"}, NO_WAY),
        ({"runtime": ["litert"]}, {"tensorflow": {"missing": "gone"}}, {"transplant_via": "tensorflow"}, NO_WAY),
        ({"runtime": ["litert"]}, {"tensorflow": {"layers": ["input", "dense"]}}, {"transplant_via": "tensorflow"}, NO_WAY),
        ({"framework": ["tensorflow"], "runtime": ["litert"]}, {}, {}, None),
        ({"runtime": ["onnxruntime"], "quantization": ["weight_only_int8"]}, {}, {}, "onnxruntime has no weight_only_int8"),
        ({"quantization": ["float16"]}, {}, {}, "native has no float16"),
        ({"framework": ["fake"]}, {}, {}, "fake does not build conv2d, max_pool, relu"),
        ({}, {"pytorch": {"optimizers": ["adam"]}}, {}, "pytorch has no optimizer sgd"),
        ({"attack": ["fgsm"]}, {"pytorch": {"gradients": ["class"]}}, {}, "fgsm needs the loss gradient, which pytorch does not give"),
        ({}, {"pytorch": {"gradients": []}}, {}, None),
        ({"attack": ["fgsm"]}, {"attacks": {"missing": "not installed"}}, {}, "env_unavailable: attacks need the attacks (not installed)"),
        ({}, {"attacks": {"missing": "not installed"}}, {}, None),
        ({}, {"pytorch": {"missing": "no torch"}}, {}, "env_unavailable: framework pytorch can't be used here (no torch)"),
        (
            {"runtime": ["onnxruntime"]}, {"onnxruntime": {"missing": "not installed: onnx"}}, {},
            "env_unavailable: runtime onnxruntime can't be used here (not installed: onnx)",
        ),
        ({"weights": ["same"]}, {}, {"same_weights_from": "tensorflow"}, None),
        (
            {"weights": ["same"]}, {"tensorflow": {"missing": "gone"}}, {"same_weights_from": "tensorflow"},
            "env_unavailable: framework tensorflow can't be used here (gone)",
        ),
        (
            {"weights": ["same"], "architecture": ["tests.unit.test_grid:recurrent"]},
            {"tensorflow": {"own": {"gru": {"reset_after": False, "recurrent_activation": "sigmoid"}}}, "pytorch": {"variants": AFTER}},
            {"same_weights_from": "tensorflow"},
            "no exact counterpart: tensorflow trains gru with reset_after False under the recipe defaults, which pytorch does not build",
        ),
        (
            {"weights": ["same"], "architecture": ["tests.unit.test_grid:recurrent"], "recipe": ["matched"]},
            {"tensorflow": {"own": {"gru": {"reset_after": False}}}, "pytorch": {"variants": AFTER}}, {"same_weights_from": "tensorflow"}, None,
        ),
        (
            {"architecture": ["tests.unit.test_grid:recurrent"], "recipe": ["matched"]}, {"pytorch": {"variants": {"gru": {"reset_after": [False]}}}},
            {}, "pytorch does not build gru with reset_after True",
        ),
        ({"control": ["float64"]}, {"pytorch": {"float64": False}}, {}, "pytorch has no float64"),
        ({"runtime": ["onnxruntime(optimization=basic)"], "quantization": ["static_int8(granularity=tensor,samples=9)"]}, {}, {}, None),
        ({"runtime": ["onnxruntime(optimisation=basic)"]}, {}, {}, "onnxruntime has no option 'optimisation'; did you mean 'optimization'?"),
        ({"runtime": ["onnxruntime(optimization=some)"]}, {}, {}, "onnxruntime: optimization can't be 'some'; valid: all, basic, disabled"),
        (
            {"runtime": ["onnxruntime"], "quantization": ["dynamic_int8(granularity=tensor)"]}, {}, {},
            "onnxruntime's dynamic_int8 has no option 'granularity'; it has no options",
        ),
        ({"control": ["float64"], "runtime": ["onnxruntime"]}, {}, {}, "onnxruntime has no float64"),
        ({"control": ["float64"]}, {}, {}, None),
        (
            {"weights": ["same"]}, {}, {"same_weights_from": "fake"},
            "no weights to take over: fake does not build conv2d, max_pool, relu",
        ),
    ],
)
def test_why_a_cell_can_not_run(make_sweep, make_facts, axes, changes, content, reason):
    assert why_not(make_sweep, make_facts(**changes), axes, **content) == reason


def test_images_that_are_too_small_for_a_network(make_sweep, make_facts):
    """8 x 8 are 4 x 4 after the first convolution and 2 x 2 after the maximum."""
    reason = why_not(make_sweep, make_facts(), {}, shape=(8, 8, 1))
    assert reason == "lenet5 does not fit mnist: conv2 reads windows of 5 from 2 x 2"


def test_an_optimizer_that_is_set_for_the_data_set(make_sweep, make_facts):
    settings = {"dataset": {"mnist": {"optimizer": "adam"}}}
    assert why_not(make_sweep, make_facts(pytorch={"optimizers": ["sgd"]}), {}, settings=settings) == "pytorch has no optimizer adam"


def test_the_route_of_a_conversion(make_facts):
    facts = make_facts()
    lenet = grid.layers_of("lenet5", DatasetFacts((28, 28, 1), 10))
    pytorch, tensorflow, small = (facts.frameworks[name] for name in ("pytorch", "tensorflow", "fake"))
    native, onnxruntime, litert, fake = (facts.runtimes[name] for name in ("native", "onnxruntime", "litert", "fake"))
    for via in (None, tensorflow):
        assert support.route(pytorch, native, lenet, via, facts) == Route("native", pytorch, "native")
        assert support.route(pytorch, onnxruntime, lenet, via, facts) == Route("onnx", pytorch, "onnx")
        assert support.route(tensorflow, litert, lenet, via, facts) == Route("tflite", tensorflow, "saved_model")
    assert support.route(pytorch, litert, lenet, tensorflow, facts) == Route("transplant:tensorflow", tensorflow, "saved_model")
    assert support.route(pytorch, litert, lenet, None, facts) is None
    assert support.route(pytorch, fake, lenet, small, facts) is None  # the fake framework has no convolution to rebuild it with
    assert support.route(pytorch, fake, lenet, tensorflow, facts) is None


def test_a_toolchain_that_exports_what_the_frameworks_own_does_not(make_facts):
    lenet = grid.layers_of("lenet5", DatasetFacts((28, 28, 1), 10))
    facts = make_facts()
    elsewhere = replace(facts.frameworks["pytorch"], toolchain="another", facts={"exports": ["tflite"]})
    facts = replace(facts, exporters={("pytorch", "tflite"): elsewhere})
    pytorch, litert, tensorflow = facts.frameworks["pytorch"], facts.runtimes["litert"], facts.frameworks["tensorflow"]
    assert support.route(pytorch, litert, lenet, tensorflow, facts) == Route("tflite", elsewhere, "tflite")
    gone = replace(facts, exporters={("pytorch", "tflite"): replace(elsewhere, missing="not installed")})
    assert support.route(pytorch, litert, lenet, tensorflow, gone).name == "transplant:tensorflow"
    assert support.route(pytorch, litert, lenet, None, gone) is None


def test_the_framework_that_networks_are_rebuilt_in(make_sweep, make_facts):
    facts = make_facts()
    assert support.way_round(make_sweep(), facts) is None
    assert support.way_round(make_sweep(transplant_via="tensorflow"), facts) is facts.frameworks["tensorflow"]


def test_a_users_own_architecture(monkeypatch):
    module = types.ModuleType("own_nets")
    module.wide = lambda shape, classes: [layers.image_input(*shape), layers.flatten("flat", "input"), layers.dense("top", "flat", classes)]
    module.odd = lambda shape, classes: [{"kind": "attention", "name": "input", "inputs": []}]
    monkeypatch.setitem(sys.modules, "own_nets", module)
    assert grid.layers_of("own_nets:wide", DatasetFacts((2, 3, 1), 7))[2]["units"] == 7
    with pytest.raises(ValueError, match="there is no layer of kind 'attention'"):
        grid.layers_of("own_nets:odd", DatasetFacts((2, 3, 1), 7))
    with pytest.raises(ConfigError, match="'own_nets:narrow' can't be loaded"):
        grid.layers_of("own_nets:narrow", DatasetFacts((2, 3, 1), 7))
    with pytest.raises(ConfigError, match="'no_such_nets:wide' can't be loaded"):
        grid.layers_of("no_such_nets:wide", DatasetFacts((2, 3, 1), 7))


TEXTS = DatasetFacts((200,), 2, 10_000)


def test_texts_have_a_vocabulary_and_their_own_architectures():
    network = grid.layers_of("textcnn", TEXTS)
    assert (network[0]["kind"], network[0]["shape"], network[0]["vocabulary"], network[-1]["units"]) == ("tokens", [200], 10_000, 2)
    with pytest.raises(ValueError, match="it reads images, not texts"):
        grid.layers_of("lenet5", TEXTS)
    with pytest.raises(ValueError, match="it reads texts, not images"):
        grid.layers_of("gru", DatasetFacts((28, 28, 1), 10))
    with pytest.raises(ValueError, match="conv5 reads windows of 5 from 4 steps"):
        grid.layers_of("textcnn", DatasetFacts((4,), 2, 10_000))


def test_attacks_are_for_images(make_sweep, make_facts):
    sweep = make_sweep({"framework": ["pytorch"], "dataset": ["imdb"], "architecture": ["textcnn"], "attack": ["fgsm"]})
    (cell,) = grid.expand(sweep)
    facts = make_facts(pytorch={"layers": list(layers.KINDS)})
    assert support.unsupported(cell, sweep, facts, grid.layers_of("textcnn", TEXTS)) == "fgsm changes images within [0, 1], and imdb has token ids"
