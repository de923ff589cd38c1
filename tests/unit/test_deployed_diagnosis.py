"""The diagnosis of deployed models on networks small enough to work out, with NumPy in the place of a runtime."""

import json

import numpy as np
import pytest
from drawn import trained_like

from sweep import diagnosis, reference, simulation
from sweep import layers as neutral
from sweep.runtimes import fake
from sweep.stages import diagnose, models

FLOAT = simulation.Arithmetic("float32", "float32", False, "channel")
HALF = simulation.Arithmetic("float16", "float16", False, "channel")
INTEGER = simulation.Arithmetic("int8", "int8", False, "channel")
LAYERS = [
    neutral.image_input(6, 6, 3),
    neutral.conv2d("conv", "input", 4, 3, 1, ((1, 1), (1, 1))),
    neutral.batch_norm("norm", "conv", 1e-3, 0.9),
    neutral.relu("relu", "norm"),
    neutral.max_pool("pool", "relu"),
    neutral.flatten("flat", "pool"),
    neutral.dense("dense", "flat", 5),
    neutral.relu("relu2", "dense"),
    neutral.dense("logits", "relu2", 4),
]
SHOWN = ("norm", "relu", "pool", "flat", "relu2", "logits")  # the convolution and the first dense layer are fused


@pytest.fixture
def case():
    random = np.random.RandomState(0)
    weights = trained_like(random, LAYERS)
    return weights, random.rand(12, 6, 6, 3).astype(np.float32)


def deployed(weights, images, layers=LAYERS, change=None, shown=SHOWN):
    """Tensors of a float32 model, images channels first, where `change` makes other outputs of layers by name; and its output."""
    values, tensors = {}, []
    for layer in layers:
        given = [values[name] for name in layer["inputs"]] or [images]
        values[layer["name"]] = reference.apply(layer, reference.own_weights(layer, weights, np.float32), *given)
        if change and layer["name"] in change:
            values[layer["name"]] = change[layer["name"]](values[layer["name"]])
        if layer["name"] in shown:
            array = values[layer["name"]]
            tensors.append(("t/" + layer["name"], np.ascontiguousarray(np.moveaxis(array, -1, 1)) if array.ndim == 4 else array))
    return tensors, values[layers[-1]["name"]]


def judge(case, how=FLOAT, own=None, switched=None, **made):
    weights, images = case
    tensors, outputs = deployed(own or weights, made.pop("images", images), **made)
    return diagnosis.judge_deployed(LAYERS, weights, images, tensors, outputs, how, switched)


def test_rounding_is_no_fault(case):
    judged = judge(case)
    assert judged["verdict"]["faulty"] is False
    rows = {row["layer"]: row for row in judged["layers"]}
    assert list(rows) == ["input", "conv+norm", "relu", "pool", "flat", "dense+relu2", "logits"]
    assert (rows["conv+norm"]["tensor"], rows["conv+norm"]["layout"]) == ("t/norm", "channels first")
    assert rows["conv+norm"]["kind"] == "conv2d+batch_norm"
    json.dumps(judged, allow_nan=False)


@pytest.mark.parametrize(("parameter", "change", "fault", "layer"), [
    ("conv/kernel", lambda kernel: kernel[..., [1, 0, 3, 2]], "permuted_weights", "conv"),
    ("conv/kernel", lambda kernel: kernel[::-1, ::-1], "kernel_flip", "conv"),
    ("conv/bias", np.zeros_like, "missing_bias", "conv"),
    ("conv/kernel", lambda kernel: kernel * np.float32(2), "scale", "conv"),
    ("norm/gamma", np.ones_like, "gamma_fixed", "norm"),
    ("dense/kernel", lambda kernel: kernel.reshape(3, 3, 4, 5).transpose(2, 0, 1, 3).reshape(36, 5), "flatten_order", "dense"),
    ("dense/bias", np.zeros_like, "missing_bias", "dense"),
    ("logits/kernel", lambda kernel: kernel.reshape(4, 5).T, "transposed_kernel", "logits"),
])
def test_wrong_parameters_are_named_though_layers_are_fused(case, parameter, change, fault, layer):
    weights, _ = case
    verdict = judge(case, own=dict(weights, **{parameter: np.ascontiguousarray(change(weights[parameter]))}))["verdict"]
    names = (layer, "flat") if fault == "flatten_order" else (layer,)  # a flatten in that order is the same
    assert verdict["fault"] == fault
    assert verdict["layer"] in names
    assert verdict["others"] == []


def test_a_folded_bias_that_is_dropped(case):
    weights, _ = case
    norm = {name: weights[f"norm/{name}"].astype(np.float64) for name in ("gamma", "beta", "mean", "variance")}
    folded = norm["gamma"] / np.sqrt(norm["variance"] + 1e-3) * (weights["conv/bias"] - norm["mean"]) + norm["beta"]
    verdict = judge(case, change={"norm": lambda values: (values - folded).astype(np.float32)})["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("missing_bias", "conv")


@pytest.mark.parametrize(("change", "fault"), [(lambda images: images * np.float32(255), "input_scale"),
                                               (lambda images: images[..., ::-1], "channel_order"),
                                               (lambda images: images.transpose(0, 2, 1, 3), "layout")])
def test_what_is_made_of_the_input(case, change, fault):
    weights, images = case
    changed = np.ascontiguousarray(change(images))
    tensors, outputs = deployed(weights, changed)
    tensors.insert(0, ("preprocessed", changed))
    verdict = diagnosis.judge_deployed(LAYERS, weights, images, tensors, outputs, FLOAT)["verdict"]
    assert (verdict["fault"], verdict["layer"], verdict["others"]) == (fault, "input", [])


def test_an_activation_left_out(case):
    own = [dict(layer, kind="flatten") if layer["name"] == "relu2" else layer for layer in LAYERS]  # of a vector: the vector
    verdict = judge(case, layers=own)["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("activation", "relu2")


def test_an_epsilon_that_no_framework_has(case):
    own = [dict(layer, epsilon=0.3) if layer["name"] == "norm" else layer for layer in LAYERS]
    verdict = judge(case, layers=own)["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("epsilon", "norm")
    assert "another epsilon in place of 0.001" in verdict["evidence"]


def test_numbers_that_float16_does_not_have(case):
    with np.errstate(over="ignore", invalid="ignore"):
        verdict = judge(case, how=HALF, change={"relu": lambda values: np.where(values > 1, np.float32(np.inf), values)})["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("overflow", "relu")


def rounded(values, step, low=-128, high=127):
    return (np.clip(np.rint(values / step), low, high) * step).astype(np.float32)


@pytest.mark.parametrize(("steps", "fault"), [(120, None), (4, "calibration"), (1000, "calibration")])
def test_steps_of_an_integer_tensor(case, steps, fault):
    """Of 127 steps: the values take 120 of them, or 4, or would take 1,000."""
    step = reference.layer_outputs(LAYERS, *case)["relu"].max() / steps
    verdict = judge(case, how=INTEGER, change={"relu": lambda values: rounded(values, step)})["verdict"]
    assert verdict["fault"] == fault
    assert verdict["layer"] == (fault and "relu")


def test_a_tensor_that_is_read_by_another_scale(case):
    weights, images = case
    right, _ = deployed(weights, images)
    wrong, outputs = deployed(weights, images, change={"pool": lambda values: values * np.float32(2)})
    tensors = right[:3] + [("dequantized", wrong[2][1])] + wrong[3:]
    verdict = diagnosis.judge_deployed(LAYERS, weights, images, tensors, outputs, INTEGER)["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("quantization_scale", "pool")


def test_an_optimisation_is_to_blame_where_the_tensors_are_right(case):
    weights, images = case
    tensors, outputs = deployed(weights, images)
    _, served = deployed(dict(weights, **{"conv/bias": 0 * weights["conv/bias"]}), images)
    switched = {"delegate=none": outputs, "threads=2": served}
    verdict = diagnosis.judge_deployed(LAYERS, weights, images, tensors, served, FLOAT, switched)["verdict"]
    assert (verdict["fault"], verdict["layer"], verdict["switched"]) == ("optimization", "conv", ["delegate=none"])
    assert "without its bias of conv" in verdict["evidence"]
    assert verdict["evidence"].endswith("the outputs are right with delegate=none")


def test_an_addition_of_the_same_tensor_twice():
    layers = [neutral.image_input(4, 4, 2), neutral.conv2d("one", "input", 3, 3), neutral.conv2d("two", "input", 3, 3), neutral.add("add", "one", "two"),
              neutral.flatten("flat", "add"), neutral.dense("logits", "flat", 3)]
    random = np.random.RandomState(0)
    weights = {name: random.randn(*shape).astype(np.float32) for name, shape in neutral.parameters(layers).items()}
    images = random.rand(5, 4, 4, 2).astype(np.float32)
    own = [dict(layer, inputs=["one", "one"]) if layer["name"] == "add" else layer for layer in layers]
    tensors, outputs = deployed(weights, images, own, shown=("one", "two", "add", "flat"))
    verdict = diagnosis.judge_deployed(layers, weights, images, tensors, outputs, FLOAT)["verdict"]
    assert (verdict["fault"], verdict["layer"]) == ("branch", "add")


def test_a_source_that_is_known_by_its_tensors_alone():
    random = np.random.RandomState(0)
    one, two, three = (random.randn(6, 8, 8, 4).astype(np.float32) for _ in range(3))
    source = [("conv", one), ("norm", two), ("relu", three), ("output", random.randn(6, 3).astype(np.float32))]

    def verdict(name, change, how=FLOAT):
        tensors, wrong = [], False
        for each, array in source:
            changed = change(array) if each == name else array + np.float32(0.5) * np.sin(array) if wrong else array  # what follows from it
            wrong = wrong or each == name
            tensors.append((each, np.moveaxis(changed, -1, 1) if array.ndim == 4 else changed))
        return diagnosis.judge_tensors(source, source[-1][1], tensors, tensors[-1][1], how)["verdict"]

    assert not verdict("none", None)["faulty"]
    found = verdict("norm", lambda array: array + np.array([0, 1, 0, -2], np.float32))
    assert (found["fault"], found["layer"]) == ("bias", "norm")
    found = verdict("norm", lambda array: array[..., [2, 1, 0, 3]])
    assert (found["fault"], found["layer"]) == ("permuted_weights", "norm")
    found = verdict("relu", lambda array: array * np.float32(3))
    assert (found["fault"], found["layer"]) == ("scale", "relu")
    assert verdict("relu", lambda array: array * np.float32(3), INTEGER)["fault"] == "quantization_scale"
    assert verdict("norm", lambda array: one)["fault"] == "left_out"
    with np.errstate(invalid="ignore"):
        assert verdict("relu", lambda array: np.where(array > 2, np.float32(np.nan), array))["fault"] == "overflow"
    assert verdict("conv", lambda array: np.where(np.arange(6)[:, None, None, None] == 2, array + 1, array))["fault"] == "unknown"


def test_tensors_of_parallel_branches_may_come_in_any_order_and_some_may_be_fused():
    random = np.random.RandomState(0)
    left, fused, right, end = (random.randn(6, 4, 4, 4).astype(np.float32) for _ in range(4))
    outputs = random.randn(6, 3).astype(np.float32)
    source = [("left", left), ("fused", fused), ("right", right), ("end", end), ("output", outputs)]
    deployed = [("a", right), ("b", left), ("c", end), ("output", outputs)]
    assert not diagnosis.judge_tensors(source, outputs, deployed, outputs, FLOAT)["verdict"]["faulty"]
    deployed[2:] = [("c", end + 0.5), ("output", outputs + 1)]
    assert diagnosis.judge_tensors(source, outputs, deployed, outputs + 1, FLOAT)["verdict"]["layer"] == "end"
    magnified = 2 * float(np.abs(outputs).max())
    assert not diagnosis.judge_tensors(source, outputs, deployed, outputs + 1, FLOAT, rounding=magnified)["verdict"]["faulty"]


def test_outputs_are_judged_where_the_tensors_tell_nothing():
    random = np.random.RandomState(0)
    hidden, right = random.randn(6, 8, 8, 4).astype(np.float32), random.randn(6, 50).astype(np.float32)
    source = [("conv", hidden), ("output", right)]

    def verdict(outputs, tensors=(), switched=None):
        return diagnosis.judge_tensors(source, right, list(tensors), outputs, FLOAT, switched)["verdict"]

    assert not verdict(right)["faulty"]
    assert not verdict(right, source)["faulty"]
    assert verdict(np.roll(right, 7, axis=1))["fault"] == "output_order"
    assert verdict(right[:, 1:])["fault"] == "shape"
    found = verdict(np.zeros_like(right), switched={"resolver=reference": right, "threads=2": right + 1})
    assert (found["fault"], found["layer"], found["switched"]) == ("unknown", "outputs", ["resolver=reference"])
    found = verdict(right + 1, source)
    assert (found["fault"], found["layer"]) == ("optimization", "outputs")


def test_the_stage_finds_a_fault_and_the_option_that_it_goes_with(tmp_path):
    """With the runtime in NumPy: a file whose kernel isn't what its source's weights say."""
    network = [neutral.image_input(2, 2, 1), neutral.flatten("flat", "input"), neutral.dense("logits", "flat", 4)]
    options = {name: facts["default"] for name, facts in fake.FACTS["options"].items()}
    settings = {"module": "fake", "threads": 1, "options": options, "seed": 0, "examples": 3, "quantization": "float32", "quantization_options": {}}
    folders = {name: tmp_path / name for name in ("source", "model", "data", "out")}
    for folder in folders.values():
        folder.mkdir()
    weights = {"logits/kernel": np.random.RandomState(1).randn(4, 4).astype(np.float32), "logits/bias": np.ones(4, np.float32)}
    np.savez(folders["source"] / "weights.npz", **weights)
    np.savez(folders["model"] / "model.npz", **dict(weights, **{"logits/kernel": weights["logits/kernel"].T}))
    details = {"file": "model.npz", "layers": network, "input_shape": [2, 2, 1], "input_dtype": "float32", "output_shape": [4],
               "quantization": "float32"}
    for name in ("source", "model"):
        models.write_details(str(folders[name]), **details)
    np.save(folders["data"] / "x_test.npy", np.random.RandomState(0).randint(0, 256, (8, 2, 2, 1)).astype(np.uint8))
    np.savez(tmp_path / "splits.npz", attack=np.array([5, 2, 7, 1, 0, 3, 4, 6]))
    data, out = {"folder": str(folders["data"]), "splits": str(tmp_path / "splits.npz")}, str(folders["out"])
    diagnose.inputs_side(settings, data, out)
    diagnose.deployed_side(settings, str(folders["model"]), out)
    diagnose.switched_side(settings, str(folders["model"]), out)
    found = diagnose.deployed_verdict(settings, str(folders["source"]), out, rounding=0.0)
    assert found["facts"] == {"diagnosis": "transposed_kernel at logits (dense)"}
    assert found["metrics"]["diagnosed_layers"] == 3
    judged = json.loads((folders["out"] / "diagnosis.json").read_text())
    assert judged["verdict"]["switched"] == []  # no option makes it right
    assert "| tensor |" in (folders["out"] / "diagnosis.md").read_text()
