"""What every training framework promises, on the smallest network that has every kind of layer it states.

A framework whose package isn't installed in this interpreter is skipped; any other failure to import is a failure.
"""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from sweep import components, initial, layers, reference
from sweep.contracts import FrameworkFacts
from sweep.layers import add, average_pool, batch_norm, conv2d, dense, flatten, image_input, max_pool, normalize, relu

CLASSES = 5
LINEAR = [
    image_input(10, 10, 2), normalize("normalize", "input", [0.4, 0.5], [0.2, 0.3]), flatten("flatten", "normalize"),
    dense("logits", "flatten", CLASSES),
]
# Every kind; padding even, uneven as TensorFlow's SAME puts it, and uneven as nothing does; a flatten whose order of axes matters.
CONVOLUTIONAL = [
    image_input(10, 10, 2), normalize("normalize", "input", [0.4, 0.5], [0.2, 0.3]),
    conv2d("conv1", "normalize", 4, 3, padding=((1, 1), (1, 1)), initializer="he_normal"),
    batch_norm("norm1", "conv1"), relu("relu1", "norm1"),
    conv2d("conv2", "relu1", 4, 3, 2, padding=((0, 1), (0, 1))), conv2d("shortcut", "relu1", 4, 1, 2), add("sum", "conv2", "shortcut"),
    batch_norm("norm2", "sum"), relu("relu2", "norm2"), conv2d("conv3", "relu2", 4, 3, padding=((2, 0), (0, 1))), relu("relu3", "conv3"),
    max_pool("max", "relu3", 2, 1), average_pool("mean", "max", 2, 2), flatten("flatten", "mean"), dense("logits", "flatten", CLASSES),
]
PLAN = {
    "optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "epsilon": None, "l2": 0.0, "batch_size": 16, "epochs": 2, "decay": [],
    "recipe": "matched", "seed": 7,
}


def found():
    """Every framework, as a parameter that is skipped where its package is missing."""
    modules = []
    for name in components.names("frameworks"):
        try:
            modules.append(pytest.param(components.load("frameworks", name), id=name))
        except ModuleNotFoundError as error:
            if error.name.startswith("sweep"):
                raise
            modules.append(pytest.param(None, marks=pytest.mark.skip(reason=f"{name}: {error}"), id=name))
    return modules


FRAMEWORKS = found()
PAIRS = [pytest.param(a.values[0], b.values[0], id=f"{a.id}-{b.id}", marks=[*a.marks, *b.marks]) for a, b in combinations(FRAMEWORKS, 2)]


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    request.param.configure(1)
    return request.param


def network_for(*frameworks):
    kinds = set.intersection(*(set(framework.FACTS["layers"]) for framework in frameworks))
    return CONVOLUTIONAL if kinds >= set(layers.KINDS) else LINEAR


def draw(n, seed=0):
    random = np.random.RandomState(seed)
    return random.rand(n, 10, 10, 2).astype(np.float32), random.randint(0, CLASSES, n).astype(np.int64)


def lively(resolved, seed=3):
    """Weights of which none is at its neutral initial value, so that none can be left out unnoticed."""
    random = np.random.RandomState(seed)
    weights = initial.weights(resolved, seed)
    for name, array in weights.items():
        if name.endswith(("gamma", "variance")):
            array[...] = random.uniform(0.5, 2, array.shape)
        elif not name.endswith("kernel"):
            array[...] = random.normal(0, 0.3, array.shape)
    return weights


def made(framework, net=None, recipe="matched", dtype="float32"):
    """A model with lively weights, and its resolved list."""
    resolved = framework.resolve(net or network_for(framework), recipe)
    model = framework.build(resolved, recipe, 7, dtype)
    framework.set_weights(model, lively(resolved))
    return model, resolved


def trained(framework, net, images, labels, permutations=None, dtype="float32", between=lambda model: None, **changes):
    """Weights after a training from `initial`'s, and its reports."""
    plan = dict(PLAN, **changes)
    resolved = framework.resolve(net, plan["recipe"])
    model = framework.build(resolved, plan["recipe"], plan["seed"], dtype)
    framework.set_weights(model, initial.weights(resolved, 1))
    reports = []
    for report in framework.train(model, images, labels, plan, permutations):
        reports.append(report)
        between(model)
    return framework.get_weights(model), reports


def assert_close(found, expected, **tolerance):
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], err_msg=name, **tolerance)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_facts_are_json_and_complete(framework):
    facts = framework.FACTS
    assert json.loads(json.dumps(facts)) == facts
    assert set(facts) == set(FrameworkFacts.__annotations__)
    assert set(facts["layers"]) <= set(layers.KINDS)
    assert "native" in facts["exports"]


def test_weights_come_back_as_they_were_set(framework):
    model, resolved = made(framework)
    weights = lively(resolved, seed=4)
    framework.set_weights(model, weights)
    taken = framework.get_weights(model)
    assert_close(taken, weights, rtol=0)
    assert {array.dtype for array in taken.values()} == {np.dtype(np.float32)}
    for array in taken.values():
        array[...] = 0
    assert_close(framework.get_weights(model), weights, rtol=0)


def test_wrong_weights_are_refused_by_name(framework):
    model, resolved = made(framework)
    weights = lively(resolved)
    with pytest.raises(ValueError, match="logits/bias"):
        framework.set_weights(model, {name: array for name, array in weights.items() if name != "logits/bias"})
    with pytest.raises(ValueError, match="logits/extra"):
        framework.set_weights(model, dict(weights, **{"logits/extra": np.zeros(3)}))
    with pytest.raises(ValueError, match="logits/kernel"):
        framework.set_weights(model, dict(weights, **{"logits/kernel": weights["logits/kernel"].T}))


def test_resolve_fills_what_is_open_and_nothing_else(framework):
    net = [image_input(4, 4, 2), batch_norm("open", "input"), batch_norm("stated", "open", 0.5, 0.25)]
    for recipe in ("matched", "identical"):
        resolved = framework.resolve(net, recipe)
        assert [layer["epsilon"] for layer in resolved[1:]] == [1e-3, 0.5]
        assert [layer["momentum"] for layer in resolved[1:]] == [0.99, 0.25]
    own = framework.resolve(net, "defaults")
    assert 0 < own[1]["epsilon"] < 0.01
    assert 0.5 < own[1]["momentum"] < 1
    assert (own[2]["epsilon"], own[2]["momentum"]) == (0.5, 0.25)
    assert net[1]["epsilon"] is None


@pytest.mark.parametrize("recipe", ["defaults", "matched"])
def test_initial_weights_follow_the_seed(framework, recipe):
    resolved = framework.resolve(network_for(framework), recipe)
    first, again, other = (framework.get_weights(framework.build(resolved, recipe, seed)) for seed in (1, 1, 2))
    assert_close(again, first, rtol=0)
    assert not np.array_equal(other["logits/kernel"], first["logits/kernel"])


def test_matched_draws_from_the_lists_distributions(framework):
    resolved = framework.resolve([image_input(10, 10, 2), flatten("flatten", "input"), dense("glorot", "flatten", 100),
                                  dense("he", "glorot", 100, initializer="he_normal")], "matched")
    weights = framework.get_weights(framework.build(resolved, "matched", 0))
    limit = np.sqrt(6 / (200 + 100))  # Glorot & Bengio 2010, eq. 16
    assert 0.99 * limit < np.abs(weights["glorot/kernel"]).max() <= limit
    assert weights["glorot/kernel"].std() == pytest.approx(limit / np.sqrt(3), rel=0.02)
    deviation = np.sqrt(2 / 100)  # He et al. 2015, eq. 10, kept by the correction after the cut at two of the wider deviations
    assert weights["he/kernel"].std() == pytest.approx(deviation, rel=0.03)
    assert np.abs(weights["he/kernel"]).max() <= 2 * deviation / 0.8796
    assert not weights["glorot/bias"].any()


def test_identical_starts_from_the_shared_weights(framework):
    resolved = framework.resolve(network_for(framework), "identical")
    assert_close(framework.get_weights(framework.build(resolved, "identical", 5)), initial.weights(resolved, 5), rtol=0)


def test_double_precision_equals_the_reference_in_every_layer(framework):
    if not framework.FACTS["float64"]:
        pytest.skip("states no float64")
    model, resolved = made(framework, dtype="float64")
    images, _ = draw(6)
    expected = reference.layer_outputs(resolved, lively(resolved), images)
    outputs = framework.layer_outputs(model, images)
    assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    assert framework.predict(model, images).dtype == np.float64


def test_predictions_do_not_depend_on_the_batch(framework):
    model, resolved = made(framework)
    images, _ = draw(20)
    logits = framework.predict(model, images)
    assert (logits.shape, logits.dtype) == ((20, CLASSES), np.float32)
    for size in (1, 7, 20):
        np.testing.assert_allclose(framework.predict(model, images, size), logits, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits, reference.logits(resolved, lively(resolved), images), rtol=1e-5, atol=1e-5)


def test_loss_gradient_is_the_slope_of_each_examples_loss(framework):
    model, _ = made(framework, dtype="float64")
    images, labels = draw(4)
    images = images.astype(np.float64)
    gradient = framework.loss_gradient(model, images, labels)
    assert gradient.shape == images.shape
    random, step = np.random.RandomState(1), 1e-6
    for _ in range(20):
        at = tuple(random.randint(0, extent) for extent in images.shape)
        moved = np.stack([images, images])
        moved[0][at] += step
        moved[1][at] -= step
        up, down = (-log_softmax(framework.predict(model, way))[at[0], labels[at[0]]] for way in moved)
        assert gradient[at] == pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-7)


def test_class_gradients_make_up_the_loss_gradient(framework):
    model, _ = made(framework, dtype="float64")
    images, labels = draw(300)  # more than one internal chunk
    each = framework.class_gradient(model, images)
    assert each.shape == (300, CLASSES, 10, 10, 2)
    slopes = np.exp(log_softmax(framework.predict(model, images))) - np.eye(CLASSES)[labels]
    combined = np.einsum("nc,nchwk->nhwk", slopes, each)
    np.testing.assert_allclose(framework.loss_gradient(model, images, labels), combined, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(framework.class_gradient(model, images, labels), each[np.arange(300), labels], rtol=1e-9, atol=1e-12)


def softmax_regression(images, labels, weights, permutations, plan):
    """Stochastic gradient descent on LINEAR by hand, in float64: final weights, and (loss, accuracy) of each epoch."""
    features = ((images.astype(np.float64) - [0.4, 0.5]) / [0.2, 0.3]).reshape(len(images), -1)
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    state = {name: [np.zeros_like(array), np.zeros_like(array)] for name, array in weights.items()}
    rate, step, reports = plan["learning_rate"], 0, []
    for epoch, order in enumerate(permutations):
        rate *= np.prod([factor for start, factor in plan["decay"] if start == epoch])
        losses, hits = [], []
        for batch in np.split(order, range(plan["batch_size"], len(order), plan["batch_size"])):
            step += 1
            logits = features[batch] @ weights["logits/kernel"] + weights["logits/bias"]
            losses += list(-log_softmax(logits)[range(len(batch)), labels[batch]])
            hits += list(logits.argmax(1) == labels[batch])
            slope = (np.exp(log_softmax(logits)) - np.eye(CLASSES)[labels[batch]]) / len(batch)
            penalty = 2 * plan["l2"] * weights["logits/kernel"]
            gradients = {"logits/kernel": features[batch].T @ slope + penalty, "logits/bias": slope.sum(0)}
            for name, gradient in gradients.items():
                first, second = state[name]
                if plan["optimizer"] == "sgd":
                    first[...] = plan["momentum"] * first + gradient
                    weights[name] -= rate * first
                else:
                    first[...] = 0.9 * first + 0.1 * gradient
                    second[...] = 0.999 * second + 0.001 * gradient**2
                    weights[name] -= rate * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-7)
        reports.append((np.mean(losses), np.mean(hits)))
    return weights, reports


OPTIMIZERS = [{"momentum": 0.0}, {"momentum": 0.9}, {"optimizer": "adam", "learning_rate": 0.01}]


@pytest.mark.parametrize("changes", OPTIMIZERS, ids=["sgd", "momentum", "adam"])
def test_training_follows_the_agreed_formulas(framework, changes):
    """Steps, the smaller last batch, l2, decay, the given order and the reports, against the same written out in NumPy."""
    images, labels = draw(50)
    plan = dict(PLAN, recipe="identical", l2=0.01, epochs=3, decay=[(1, 0.5), (2, 0.1)], **changes)
    permutations = initial.permutations(50, 3, 7)
    weights, reports = trained(framework, LINEAR, images, labels, permutations, "float64", **plan)
    expected, expected_reports = softmax_regression(images, labels, initial.weights(LINEAR, 1), permutations, plan)
    assert_close(weights, expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(reports, expected_reports, rtol=1e-9)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_identical_trainings_agree(first, second):
    net, (images, labels), order = network_for(first, second), draw(40), initial.permutations(40, 2, 7)
    for framework in (first, second):
        framework.configure(1)
    # In double precision only rounding parts them: 6 steps of a network some 10 operations deep.
    for optimizer, rate in (("sgd", 0.05), ("adam", 0.005)):
        settings = {"dtype": "float64", "recipe": "identical", "optimizer": optimizer, "learning_rate": rate}
        one, other = (trained(framework, net, images, labels, order, **settings) for framework in (first, second))
        assert_close(one[0], other[0], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(one[1], other[1], rtol=1e-9)
    one, other = (trained(framework, net, images, labels, order, recipe="identical") for framework in (first, second))
    assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)  # single precision: 1e9 times coarser, and no better where values cancel


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_matched_moving_variance_is_that_of_the_biased_variance(framework, dtype):
    if "batch_norm" not in framework.FACTS["layers"]:
        pytest.skip("states no batch_norm")
    images, labels = draw(3)
    resolved = framework.resolve(CONVOLUTIONAL, "matched")
    weights, _ = trained(framework, CONVOLUTIONAL, images, labels, dtype=dtype, learning_rate=0.0, batch_size=3, epochs=1)
    before = reference.layer_outputs(resolved, initial.weights(resolved, 1), images)["conv1"]
    np.testing.assert_allclose(weights["norm1/mean"], 0.01 * before.mean((0, 1, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(weights["norm1/variance"], 0.99 + 0.01 * before.var((0, 1, 2)), rtol=1e-6)  # unbiased: 3e-5 off at n = 300


@pytest.fixture(scope="module")
def elsewhere():
    """`digest` of every framework, taken in another process."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    code = "import json, test_frameworks as t; print(json.dumps({f.id: t.digest(f.values[0]) for f in t.FRAMEWORKS if f.values[0]}))"
    output = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def digest(framework):
    """Of the weights after a training."""
    framework.configure(1)
    weights, _ = trained(framework, network_for(framework), *draw(40))
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in weights.items()}


def test_training_repeats_bit_by_bit(framework, elsewhere):
    """In this process, with predictions between the epochs, and in another process."""
    net, (images, labels) = network_for(framework), draw(40)
    first, reports = trained(framework, net, images, labels)
    again, reports_again = trained(framework, net, images, labels, between=lambda model: framework.predict(model, images))
    assert_close(again, first, rtol=0)
    assert reports_again == reports
    other, _ = trained(framework, net, images, labels, seed=8)
    assert not np.array_equal(other["logits/kernel"], first["logits/kernel"])
    assert elsewhere[framework.__name__.rpartition(".")[2]] == digest(framework)


def test_training_learns(framework):
    """Classes that differ in which rows are bright: a fifth is chance."""
    random = np.random.RandomState(0)
    labels = random.randint(0, CLASSES, 400)
    images = random.rand(400, 10, 10, 2).astype(np.float32) * 0.5
    images[np.arange(400), 2 * labels] += 0.5
    for recipe in ("defaults", "matched"):
        _, reports = trained(framework, network_for(framework), images, labels, recipe=recipe, learning_rate=0.02, epochs=8)
        assert reports[-1].accuracy > 0.8
        assert reports[-1].loss < reports[0].loss


def test_a_loss_that_is_not_finite_ends_the_training(framework):
    images, labels = draw(20)
    images[3] = np.nan
    with pytest.raises(FloatingPointError):
        trained(framework, LINEAR, images, labels)


def test_impossible_trainings_are_refused(framework):
    images, labels = draw(20)
    for changes, permutations in [({"recipe": "identical"}, None), ({}, np.zeros((2, 19), int)), ({"optimizer": "adamw"}, None)]:
        with pytest.raises(ValueError, match="permutation|optimizer"):
            trained(framework, LINEAR, images, labels, permutations, **changes)
    with pytest.raises(ValueError, match="19 labels"):
        trained(framework, LINEAR, images, labels[:19])


def test_memory_mapped_inputs_are_taken(framework, tmp_path):
    images, labels = draw(20)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    assert_close(trained(framework, LINEAR, mapped, labels)[0], trained(framework, LINEAR, images, labels)[0], rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_saved_model_comes_back(framework, tmp_path, dtype):
    model, resolved = made(framework, dtype=dtype)
    images, labels = draw(10)
    loaded = framework.load(tmp_path / framework.save(model, tmp_path), resolved)
    np.testing.assert_array_equal(framework.predict(loaded, images), framework.predict(model, images))
    np.testing.assert_array_equal(framework.loss_gradient(loaded, images, labels), framework.loss_gradient(model, images, labels))
    assert_close(framework.get_weights(loaded), framework.get_weights(model), rtol=0)


class Intruder:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_loading_runs_no_code(framework, tmp_path):
    model, resolved = made(framework)
    file, trace = tmp_path / framework.save(model, tmp_path), tmp_path / "ran"
    file.write_bytes(pickle.dumps(Intruder(trace)))
    with pytest.raises(Exception):  # noqa: B017 - each format has its own error; what counts is that nothing ran
        framework.load(file, resolved)
    assert not trace.exists()


def run_onnx(path, images):
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,), (taken,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape[1:], taken.name) == ("input", "tensor(float)", [10, 10, 2], "logits")
    return session.run(None, {"input": images})[0]


def run_saved_model(path, images):
    tensorflow = pytest.importorskip("tensorflow")
    return tensorflow.saved_model.load(str(path)).signatures["serving_default"](input=tensorflow.constant(images))["logits"].numpy()


def run_fake(path, images):
    with np.load(path, allow_pickle=False) as weights:
        return reference.logits(LINEAR, weights, images, np.float32)


READERS = {"onnx": run_onnx, "saved_model": run_saved_model, "fake": run_fake}
TARGETS = [
    pytest.param(framework.values[0], target, id=f"{framework.id}-{target}", marks=framework.marks)
    for framework in FRAMEWORKS for target in (framework.values[0].FACTS["exports"] if framework.values[0] else ["none"])
]


@pytest.mark.filterwarnings("ignore")  # of the exporters' own making
@pytest.mark.parametrize(("framework", "target"), TARGETS)
def test_exports_compute_what_the_framework_computes(framework, target, tmp_path):
    framework.configure(1)
    model, resolved = made(framework)
    path = tmp_path / framework.export(model, resolved, target, tmp_path)
    for count in (1, 30):  # the batch is free
        images, _ = draw(count)
        exact = reference.logits(resolved, lively(resolved), images)
        own = framework.predict(model, images)
        logits = framework.predict(framework.load(path, resolved), images) if target == "native" else READERS[target](path, images)
        assert np.abs(logits - own).max() <= 8 * max(np.abs(own - exact).max(), np.spacing(np.float32(np.abs(exact).max())))
    size = sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())
    assert size < 4 * layers.count(resolved) + 200_000  # no training state beside the weights


def test_unknown_exports_are_refused(framework, tmp_path):
    model, resolved = made(framework)
    with pytest.raises(ValueError, match="nonsense"):
        framework.export(model, resolved, "nonsense", tmp_path)
