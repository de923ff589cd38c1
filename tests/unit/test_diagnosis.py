"""The diagnosis on networks small enough to work out by hand."""

import json

import numpy as np
import pytest
from drawn import trained_like

from sweep import diagnosis, hypotheses, initial, reference
from sweep import layers as neutral
from sweep.frameworks import fake
from sweep.stages import diagnose, models

CONV = [
    neutral.image_input(6, 6, 2),
    neutral.conv2d("conv", "input", 3, 3, 2, ((0, 1), (0, 1))),
    neutral.batch_norm("norm", "conv", 1e-3, 0.9),
    neutral.relu("relu", "norm"),
    neutral.flatten("flat", "relu"),
    neutral.dense("logits", "flat", 4),
]


@pytest.fixture
def conv():
    """A list, trained-like weights and images."""
    random = np.random.RandomState(0)
    weights = trained_like(random, CONV)
    return CONV, weights, random.rand(5, 6, 6, 2).astype(np.float32)


def suspect(layers, weights, inputs, own=None, own_weights=None, instead=None):
    """Outputs and layers alone of a float32 NumPy network that is built from `own` and `own_weights`, and has `instead` of some layers."""
    own, own_weights = own or layers, own_weights or weights

    def run(layer, given):
        if instead and layer["name"] in instead:
            return instead[layer["name"]](*given)
        return reference.apply(layer, reference.own_weights(layer, own_weights, np.float32), *given)

    outputs = {}
    for layer in own:
        outputs[layer["name"]] = run(layer, [outputs[source] for source in layer["inputs"]] or [inputs])
    exact = reference.layer_outputs(layers, weights, inputs)
    by_name = {layer["name"]: layer for layer in own}
    single = {name: values if values.dtype.kind == "i" else values.astype(np.float32) for name, values in exact.items()}
    alone = {layer["name"]: run(by_name[layer["name"]], [single[source] for source in layer["inputs"]] or [inputs]) for layer in layers}
    return outputs, alone


def judge(layers, weights, inputs, **how):
    return diagnosis.judge(layers, weights, inputs, *suspect(layers, weights, inputs, **how))


def test_rounding_is_no_fault(conv):
    judged = judge(*conv)
    assert judged["verdict"]["faulty"] is False
    assert [row["faulty"] for row in judged["layers"]] == [False] * 6
    assert (judged["dtype"], judged["examples"]) == ("float32", 5)
    json.dumps(judged, allow_nan=False)


def test_figures_by_hand():
    layers = [neutral.image_input(1, 1, 2), neutral.flatten("flat", "input"), neutral.dense("logits", "flat", 2)]
    weights = {"logits/kernel": np.eye(2, dtype=np.float32), "logits/bias": np.array([1, 3], np.float32)}
    inputs = np.array([0.5, 1.0], np.float32).reshape(1, 1, 1, 2)  # right logits: 1.5 and 4
    outputs = {"input": inputs, "flat": inputs.reshape(1, 2) + np.float32(0.25), "logits": np.array([[0.75, 1.25]], np.float32)}
    judged = diagnosis.judge(layers, weights, inputs, outputs, None)
    flat, logits = judged["layers"][1:]
    assert (flat["difference_max"], flat["residual"], flat["causal"]) == (0.25, 0.25, None)
    assert flat["relative"] == 0.25  # the largest value is 1
    assert flat["ulps"] == 0.25 * 2**23
    assert flat["change_rate"] == pytest.approx(0.25 / 1e-7)
    assert (logits["difference_max"], logits["residual"]) == (2.75, 3.0)  # of its own inputs 1.75 and 4.25 are right
    assert logits["change_rate"] == pytest.approx((2.75 - 0.25) / (0.25 + 1e-7))
    assert logits["ulps"] == 2.75 / 2**-21
    assert judged["verdict"]["layer"] == "flat"
    assert judged["verdict"]["fault"] == "unknown"
    assert [(other["layer"], other["fault"]) for other in judged["verdict"]["others"]] == [("logits", "missing_bias")]


def test_layers_behind_a_faulty_one_are_not_blamed(conv):
    layers, weights, inputs = conv
    flipped = dict(weights, **{"conv/kernel": weights["conv/kernel"][::-1, ::-1]})
    judged = judge(layers, weights, inputs, own_weights=flipped)
    verdict = judged["verdict"]
    assert (verdict["fault"], verdict["layer"], verdict["layer_kind"], verdict["others"]) == ("kernel_flip", "conv", "conv2d", [])
    assert all(row["difference_max"] > 0.1 for row in judged["layers"][1:])
    assert verdict["explains"] < 1e-5
    assert "turned round along height and width" in verdict["evidence"]


@pytest.mark.parametrize("epsilon", [1e-5, 0.07])
def test_an_epsilon_is_found_whether_known_or_not(conv, epsilon):
    layers, weights, inputs = conv
    own = [dict(layer, epsilon=epsilon) if layer["name"] == "norm" else layer for layer in layers]
    verdict = judge(layers, weights, inputs, own=own)["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("epsilon", "norm")


def test_two_layers_in_the_wrong_order(conv):
    layers, weights, inputs = conv
    own = [dict(layer) for layer in layers]
    own[2], own[3] = dict(own[3], inputs=["conv"]), dict(own[2], inputs=["relu"])
    own[4]["inputs"] = ["norm"]
    verdict = judge(layers, weights, inputs, own=own)["verdict"]
    assert (verdict["fault"], verdict["layer"], verdict["others"]) == ("swapped_layers", "norm", [])


def test_two_layers_in_the_wrong_order_where_the_first_has_the_same_output():
    """What the dense layer is to read is never negative, so that a relu before it in place of after it shows in the relu alone."""
    layers = [neutral.image_input(1, 1, 3), neutral.flatten("flat", "input"), neutral.dense("dense", "flat", 4), neutral.relu("relu", "dense"),
              neutral.dense("logits", "relu", 2)]
    random = np.random.RandomState(0)
    weights = {name: random.randn(*shape).astype(np.float32) for name, shape in neutral.parameters(layers).items()}
    own = [layers[0], layers[1], dict(layers[3], inputs=["flat"]), dict(layers[2], inputs=["relu"]), dict(layers[4], inputs=["dense"])]
    verdict = judge(layers, weights, random.rand(6, 1, 1, 3).astype(np.float32), own=own)["verdict"]
    assert (verdict["fault"], verdict["layer"], verdict["others"]) == ("swapped_layers", "dense", [])


def test_two_faults_are_both_named(conv):
    layers, weights, inputs = conv
    wrong = dict(weights, **{"conv/bias": 0 * weights["conv/bias"], "norm/gamma": 1 + 0 * weights["norm/gamma"]})
    verdict = judge(layers, weights, inputs, own_weights=wrong)["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("missing_bias", "conv")
    assert [(other["fault"], other["layer"]) for other in verdict["others"]] == [("gamma_fixed", "norm")]


def test_what_agrees_as_well_is_listed():
    """Where all inputs are 0, a bias added twice can't be told from an output that is doubled."""
    layers = [neutral.image_input(1, 1, 1), neutral.flatten("flat", "input"), neutral.dense("logits", "flat", 2)]
    weights = {"logits/kernel": np.ones((1, 2), np.float32), "logits/bias": np.array([0.5, -2], np.float32)}
    inputs = np.zeros((2, 1, 1, 1), np.float32)
    outputs = {"input": inputs, "flat": inputs.reshape(2, 1), "logits": np.full((2, 2), [1.0, -4.0], np.float32)}
    verdict = diagnosis.judge(layers, weights, inputs, outputs, None)["verdict"]
    assert verdict["fault"] == "bias_scaled"
    assert verdict["also"] == ["scale: multiplied by a constant"]


def test_numbers_that_are_not_finite(conv):
    with np.errstate(invalid="ignore"):
        verdict = judge(*conv, instead={"relu": lambda values: np.where(values > 0, np.float32(np.inf), 0)})["verdict"]
    assert (verdict["fault"], verdict["layer"], verdict["others"]) == ("overflow", "relu", [])


def test_a_layer_that_is_missing_another_that_is_too_much_and_one_of_another_shape(conv):
    layers, weights, inputs = conv
    outputs, alone = suspect(layers, weights, inputs)
    outputs["dropout"] = outputs["relu"]
    del outputs["relu"]
    verdict = diagnosis.judge(layers, weights, inputs, outputs, alone)["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("shape", "relu")
    assert [(other["fault"], other["layer"]) for other in verdict["others"]] == [("shape", "dropout")]
    verdict = judge(layers, weights, inputs, instead={"flat": lambda values: values.reshape(len(values), -1)[:, 1:],
                                                      "logits": lambda values: np.zeros((len(values), 4), np.float32)})["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("shape", "flat")
    assert "(26,)" in verdict["evidence"]
    assert "(27,)" in verdict["evidence"]


def test_an_unknown_fault_says_where_it_is(conv):
    def wrong(values):
        result = np.maximum(values, 0)
        result[1, :, :, 2] += 0.5
        return result

    verdict = judge(*conv, instead={"relu": wrong})["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("unknown", "relu")
    assert "in 1 of 3 channels (2)" in verdict["evidence"]


def test_ill_conditioned_arithmetic_in_another_order_is_rounding():
    """x s + (beta - mean s) cancels where the variance is tiny and the mean isn't, as (x - mean) s does not."""
    layers = [neutral.image_input(4, 4, 2), neutral.batch_norm("norm", "input", 1e-5, 0.9)]
    random = np.random.RandomState(0)
    weights = {"norm/gamma": [1.5, 0.5], "norm/beta": [0.1, -2], "norm/mean": [0.7, 0.3], "norm/variance": [1e-9, 4]}
    weights = {name: np.array(values, np.float32) for name, values in weights.items()}
    inputs = random.rand(8, 4, 4, 2).astype(np.float32)

    def folded(values):
        scale = weights["norm/gamma"] / np.sqrt(weights["norm/variance"] + np.float32(1e-5))
        return values * scale + (weights["norm/beta"] - weights["norm/mean"] * scale)

    assert not judge(layers, weights, inputs, instead={"norm": folded})["verdict"]["faulty"]


def test_saturated_gates_over_many_steps_are_rounding_in_float32():
    layers = [neutral.tokens(60, 9), neutral.embedding("words", "input", 9, 4), neutral.lstm("lstm", "words", 6, True, "hard_sigmoid"),
              neutral.gru("gru", "lstm", 5, False, "sigmoid", True), neutral.dense("logits", "gru", 3)]
    weights = {name: array * 3 for name, array in initial.weights(layers, 1).items()}
    inputs = np.random.RandomState(0).randint(0, 9, (6, 60)).astype(np.int32)
    assert not judge(layers, weights, inputs)["verdict"]["faulty"]


def test_every_fault_has_one_name_that_is_no_verdict_of_its_own():
    assert {"unknown", "overflow", "shape", "swapped_layers", "wiring"}.isdisjoint(fault for fault, _, _ in hypotheses.ROWS)
    assert {kind for _, kinds, _ in hypotheses.ROWS for kind in kinds or ()} <= set(neutral.KINDS)


def test_the_stage_writes_what_it_found(tmp_path):
    """With the framework in NumPy: a model folder whose file isn't what its source's weights say."""
    network = [neutral.image_input(2, 2, 1), neutral.flatten("flat", "input"), neutral.dense("logits", "flat", 4)]
    settings = {"module": "fake", "threads": 1, "options": {}, "classes": 4, "examples": 3}
    folders = {name: tmp_path / name for name in ("source", "model", "data", "out")}
    for folder in folders.values():
        folder.mkdir()
    model = fake.build(network, "identical", 0)
    models.write_model(fake, model, network, settings, str(folders["source"]))
    model.weights["logits/kernel"] = model.weights["logits/kernel"].T.copy()
    models.write_model(fake, model, network, settings, str(folders["model"]))
    np.save(folders["data"] / "x_test.npy", np.random.RandomState(0).randint(0, 256, (8, 2, 2, 1)).astype(np.uint8))
    np.savez(tmp_path / "splits.npz", attack=np.array([5, 2, 7, 1, 0, 3, 4, 6]))
    data = {"folder": str(folders["data"]), "splits": str(tmp_path / "splits.npz")}
    out = str(folders["out"])
    diagnose.reference_side(settings, str(folders["source"]), data, out)
    diagnose.suspect_side(settings, str(folders["model"]), out)
    found = diagnose.verdict(str(folders["source"]), out)
    assert found["facts"] == {"diagnosis": "transposed_kernel at logits (dense)"}
    assert found["metrics"]["diagnosed_layers"] == 3
    assert found["metrics"]["diagnosed_examples"] == 3
    assert found["metrics"]["faulty_layers"] == 1
    assert found["metrics"]["residual_to_rounding_max"] > 1000
    assert json.loads((folders["out"] / "diagnosis.json").read_text())["verdict"]["layer"] == "logits"
    page = (folders["out"] / "diagnosis.md").read_text().splitlines()
    assert page[0] == "# transposed_kernel at logits (dense)"
    assert next(line for line in page if line.startswith("| logits |")).endswith("| yes |")
