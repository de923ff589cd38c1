"""What every training framework promises, on the smallest networks that have every kind of layer it states.

The frameworks are those that this interpreter can import; the others are skipped, and any other failure to import is a failure. In the
interpreter of another toolchain, whose Python may be as old as 3.6: `python -m pytest -c /dev/null --noconftest --rootdir=. <this file>`.
"""

import ast
import hashlib
import json
import os
import pickle
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sweep import components, initial, layers, reference
from sweep.layers import (
    add,
    average_pool,
    batch_norm,
    concatenate,
    conv1d,
    conv2d,
    dense,
    embedding,
    flatten,
    global_max_pool,
    gru,
    image_input,
    lstm,
    max_pool,
    normalize,
    relu,
    tokens,
)

CLASSES, STEPS, VOCABULARY = 5, 9, 13
LINEAR = [
    image_input(10, 10, 2), normalize("normalize", "input", [0.4, 0.5], [0.2, 0.3]), flatten("flatten", "normalize"),
    dense("logits", "flatten", CLASSES),
]
# Padding even, uneven as TensorFlow's SAME puts it, and uneven as nothing does; pools over negative values, so that zeros at the edge
# would be their maximum; a flatten whose order of axes matters.
CONVOLUTIONAL = [
    image_input(10, 10, 2), normalize("normalize", "input", [0.4, 0.5], [0.2, 0.3]),
    conv2d("conv1", "normalize", 4, 3, padding=((1, 1), (1, 1)), initializer="he_normal"),
    batch_norm("norm1", "conv1"), relu("relu1", "norm1"),
    conv2d("conv2", "relu1", 4, 3, 2, padding=((0, 1), (0, 1))), conv2d("shortcut", "relu1", 4, 1, 2), add("sum", "conv2", "shortcut"),
    max_pool("max_uneven", "sum", 2, 1, padding=((1, 0), (0, 1))), average_pool("mean_uneven", "sum", 2, 1, padding=((1, 0), (0, 1))),
    max_pool("max_even", "sum", 3, 1, padding=((1, 1), (1, 1))), average_pool("mean_even", "sum", 3, 1, padding=((1, 1), (1, 1))),
    concatenate("pools", "max_uneven", "mean_uneven", "max_even", "mean_even"), max_pool("max_same", "pools", 2, 2, padding=((0, 1), (0, 1))),
    batch_norm("norm2", "pools"), relu("relu2", "norm2"), conv2d("conv3", "relu2", 4, 3, padding=((2, 0), (0, 1))), relu("relu3", "conv3"),
    max_pool("max", "relu3", 2, 1), average_pool("mean", "max", 2, 2), flatten("flatten", "mean"),
    global_max_pool("brightest", "max_same"), concatenate("features", "flatten", "brightest"), dense("logits", "features", CLASSES),
]
PLAN = {
    "optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "epsilon": None, "l2": 0.0, "batch_size": 16, "epochs": 2, "decay": [],
    "recipe": "matched", "seed": 7,
}
VALUES = {"recurrent_activation": ["sigmoid", "hard_sigmoid"], "reset_after": [True, False]}


def found():
    """Every framework, as a parameter that is skipped where its package is missing or is of another version."""
    modules = []
    for name in components.names("frameworks"):
        try:
            modules.append(pytest.param(components.load("frameworks", name), id=name))
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("sweep"):
                raise
            modules.append(pytest.param(None, marks=pytest.mark.skip(reason="{}: {}".format(name, error)), id=name))
    return modules


FRAMEWORKS = found()


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    request.param.configure(1)
    return request.param


def known(frameworks):
    """The kinds of layers that all of them know."""
    return set.intersection(*(set(framework.FACTS["layers"]) for framework in frameworks))


def allowed(frameworks, kind, field):
    """The values of a field that all of them know."""
    return [value for value in VALUES[field]
            if all(value in framework.FACTS["variants"].get(kind, {}).get(field, VALUES[field]) for framework in frameworks)]


def image_network(*frameworks):
    return CONVOLUTIONAL if known(frameworks) >= {layer["kind"] for layer in CONVOLUTIONAL} else LINEAR


def gates(kind, activations, resets):
    """Layers on top of each other that have each value of each field at least once, left open at the end."""
    net, source = [], "embedding"
    for index in range(max(len(activations), len(resets)) + 1):
        name, last = "{}{}".format(kind, index + 1), index == max(len(activations), len(resets))
        activation = None if last else activations[index % len(activations)]
        if kind == "lstm":
            net.append(lstm(name, source, 3 + index, not last, activation))
        else:
            net.append(gru(name, source, 3 + index, not last, activation, None if last else resets[index % len(resets)]))
        source = name
    return net


def text_network(*frameworks):
    """Every kind of layer for texts, and every variant of the gates; None where they don't read texts."""
    kinds = known(frameworks)
    if "tokens" not in kinds:
        return None
    # A rectifier comes between each convolution and a batch norm: else the gradient of its bias is nothing but rounding, which Adam
    # makes steps of.
    net = [
        tokens(STEPS, VOCABULARY), embedding("embedding", "input", VOCABULARY, 4), batch_norm("norm1", "embedding"),
        conv1d("conv1", "norm1", 3, 3, 2, padding=(2, 0)), relu("relu1", "conv1"),
        conv1d("conv2", "relu1", 3, 2, padding=(0, 1), initializer="he_normal"), add("sum", "relu1", "conv2"), relu("relu2", "sum"),
        global_max_pool("max", "relu2"), flatten("flatten", "relu2"),
    ]
    ends = ["max", "flatten"]
    for kind in sorted(kinds & {"lstm", "gru"}):
        resets = allowed(frameworks, kind, "reset_after") if kind == "gru" else []
        net += gates(kind, allowed(frameworks, kind, "recurrent_activation"), resets)
        ends.append(net[-1]["name"])
    return [*net, concatenate("ends", *ends), batch_norm("norm2", "ends"), dense("logits", "norm2", CLASSES)]


NETWORKS = {"images": image_network, "texts": text_network}


@pytest.fixture(params=list(NETWORKS))
def net(request, framework):
    return chosen(request.param, framework)


def chosen(name, *frameworks):
    network = NETWORKS[name](*frameworks)
    if network is None:
        pytest.skip("reads no texts")
    return network


PAIRS = [
    pytest.param(a.values[0], b.values[0], id="{}-{}".format(a.id, b.id), marks=list(a.marks) + list(b.marks))
    for a, b in combinations(FRAMEWORKS, 2)
]


def draw(n, net=LINEAR, seed=0):
    """Inputs of the network and labels."""
    random = np.random.RandomState(seed)
    if net[0]["kind"] == "tokens":
        inputs = random.randint(0, VOCABULARY, (n, STEPS)).astype(np.int32)
    else:
        inputs = random.rand(n, 10, 10, 2).astype(np.float32)
    return inputs, random.randint(0, CLASSES, n).astype(np.int64)


def lively(resolved, seed=3):
    """Weights of which none is at its neutral initial value, so that none can be left out unnoticed."""
    random = np.random.RandomState(seed)
    weights = initial.weights(resolved, seed)
    for name, array in weights.items():
        if name.endswith(("gamma", "variance")):
            array[...] = random.uniform(0.5, 2, array.shape)
        elif name.endswith("embedding/kernel"):
            array[...] = random.normal(0, 2, array.shape)  # so wide that a hard gate is cut
        elif not name.endswith("kernel"):
            array[...] = random.normal(0, 0.3, array.shape)
    return weights


def finest(framework):
    """The dtype in which formulas show best."""
    return "float64" if framework.FACTS["float64"] else "float32"


def resolve(framework, net, recipe="matched"):
    return layers.resolved(net, recipe, framework.FACTS["own"])


def made(framework, net, recipe="matched", dtype="float32"):
    """A model with lively weights, and its resolved list."""
    resolved = resolve(framework, net, recipe)
    model = framework.build(resolved, recipe, 7, dtype)
    framework.set_weights(model, lively(resolved))
    return model, resolved


def started(framework, net, recipe, dtype):
    """A model with `initial`'s weights of seed 1."""
    resolved = resolve(framework, net, recipe)
    model = framework.build(resolved, recipe, PLAN["seed"], dtype)
    framework.set_weights(model, initial.weights(resolved, 1))
    return model


def trained(framework, net, inputs, labels, permutations=None, dtype="float32", between=lambda model: None, **changes):
    """Weights after a training from `started`'s, and its reports."""
    plan = dict(PLAN, **changes)
    model = started(framework, net, plan["recipe"], dtype)
    reports = []
    for report in framework.train(model, inputs, labels, plan, permutations):
        reports.append(report)
        between(model)
    return framework.get_weights(model), reports


def assert_close(found, expected, **tolerance):
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], err_msg=name, **tolerance)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def training_loss(resolved, weights, inputs, labels):
    """The mean cross-entropy by the reference, float64, where batch norms take the batch's statistics."""
    values = {}
    for layer in resolved:
        given = [values[name] for name in layer["inputs"]] or [inputs if layer["kind"] == "tokens" else inputs.astype(np.float64)]
        own = reference.own_weights(layer, weights)
        if layer["kind"] == "batch_norm":
            axes = tuple(range(given[0].ndim - 1))
            own.update(mean=given[0].mean(axes), variance=given[0].var(axes))
        values[layer["name"]] = reference.apply(layer, own, *given)
    return -log_softmax(values[resolved[-1]["name"]])[np.arange(len(labels)), labels].mean()


def slope(function, array, at, step=1e-6):
    """The derivative of a function of nothing by one entry of a float64 array that it reads."""
    middle, ways = array[at], []
    for moved in (middle + step, middle - step):
        array[at] = moved
        ways.append(function())
    array[at] = middle
    return (ways[0] - ways[1]) / (2 * step)


def some(random, shape, count):
    """Some indices into an array of that shape."""
    return [tuple(random.randint(0, extent) for extent in shape) for _ in range(count)]


OF_PROBES = {"operators", "operators_together"}  # of frameworks that build single operators


def stated_facts():
    """The names that `sweep.contracts` says a framework states; its syntax is newer than some interpreters that run this."""
    tree = ast.parse(Path(layers.__file__).with_name("contracts.py").read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "FrameworkFacts")
    return {node.target.id for node in body if isinstance(node, ast.AnnAssign)}


def test_the_networks_have_every_kind():
    everything = SimpleNamespace(FACTS={"layers": layers.KINDS, "variants": {}})
    assert {layer["kind"] for make in NETWORKS.values() for layer in make(everything)} == set(layers.KINDS)


def test_facts_are_json_and_complete(framework):
    facts = framework.FACTS
    assert json.loads(json.dumps(facts)) == facts
    assert set(facts) - OF_PROBES == stated_facts()
    assert set(facts["layers"]) <= set(layers.KINDS)
    assert "native" in facts["exports"]


def test_what_it_does_by_itself_is_stated_and_is_something_it_can_do(framework):
    own, variants = framework.FACTS["own"], framework.FACTS["variants"]
    assert set(own) == set(layers.AGREED) & set(framework.FACTS["layers"])
    for kind, fields in own.items():
        assert set(fields) == set(layers.AGREED[kind])
    for kind, fields in variants.items():
        for field, values in fields.items():
            assert set(values) < set(VALUES[field])
            assert own[kind][field] in values
    if "batch_norm" in own:
        assert 0 < own["batch_norm"]["epsilon"] < 0.01
        assert 0.5 < own["batch_norm"]["momentum"] < 1


def test_weights_come_back_as_they_were_set(framework, net):
    model, resolved = made(framework, net)
    weights = lively(resolved, seed=4)
    framework.set_weights(model, weights)
    taken = framework.get_weights(model)
    assert_close(taken, weights, rtol=0)
    assert {array.dtype for array in taken.values()} == {np.dtype(np.float32)}
    for array in taken.values():
        array[...] = 0
    assert_close(framework.get_weights(model), weights, rtol=0)


def test_wrong_weights_are_refused_by_name(framework):
    model, resolved = made(framework, image_network(framework))
    weights = lively(resolved)
    with pytest.raises(ValueError, match="logits/bias"):
        framework.set_weights(model, {name: array for name, array in weights.items() if name != "logits/bias"})
    with pytest.raises(ValueError, match="logits/extra"):
        framework.set_weights(model, dict(weights, **{"logits/extra": np.zeros(3)}))
    with pytest.raises(ValueError, match="logits/kernel"):
        framework.set_weights(model, dict(weights, **{"logits/kernel": weights["logits/kernel"].T}))


@pytest.mark.parametrize("recipe", ["defaults", "matched", "identical"])
def test_a_model_has_as_many_parameters_as_its_list(framework, net, recipe):
    resolved = resolve(framework, net, recipe)
    model = framework.build(resolved, recipe, 0)
    assert framework.count_parameters(model) == layers.count(resolved)
    assert {name: array.shape for name, array in framework.get_weights(model).items()} == layers.parameters(resolved)


@pytest.mark.parametrize("recipe", ["defaults", "matched"])
def test_initial_weights_follow_the_seed(framework, net, recipe):
    resolved = resolve(framework, net, recipe)
    first, again, other = (framework.get_weights(framework.build(resolved, recipe, seed)) for seed in (1, 1, 2))
    assert_close(again, first, rtol=0)
    for name in first:
        if name.endswith("kernel"):
            assert not np.array_equal(other[name], first[name]), name


def test_matched_draws_from_the_lists_distributions(framework):
    resolved = resolve(framework, [image_input(10, 10, 2), flatten("flatten", "input"), dense("glorot", "flatten", 100),
                                   dense("he", "glorot", 100, initializer="he_normal")])
    weights = framework.get_weights(framework.build(resolved, "matched", 0))
    limit = np.sqrt(6 / (200 + 100))  # Glorot & Bengio 2010, eq. 16
    assert 0.99 * limit < np.abs(weights["glorot/kernel"]).max() <= limit
    assert weights["glorot/kernel"].std() == pytest.approx(limit / np.sqrt(3), rel=0.02)
    deviation = np.sqrt(2 / 100)  # He et al. 2015, eq. 10, kept by the correction after the cut at two of the wider deviations
    assert weights["he/kernel"].std() == pytest.approx(deviation, rel=0.03)
    assert np.abs(weights["he/kernel"]).max() <= 2 * deviation / 0.8796
    assert not weights["glorot/bias"].any()


def test_matched_draws_every_kernel_and_sets_the_rest(framework, net):
    resolved = resolve(framework, net)
    weights = framework.get_weights(framework.build(resolved, "matched", 0))
    constants = initial.constants(resolved)
    assert_close({name: weights[name] for name in constants}, constants, rtol=0)
    for name in set(weights) - set(constants):
        assert np.unique(weights[name]).size > weights[name].size / 2, name


def test_matched_draws_the_kernels_of_texts(framework):
    """Bounds of uniform distributions: 1/20 for embeddings, Glorot & Bengio's for the others, recurrent kernels as the kernels."""
    kinds = known([framework])
    if "tokens" not in kinds:
        pytest.skip("reads no texts")
    net = [tokens(5, 100), embedding("embedding", "input", 100, 30), conv1d("conv", "embedding", 20, 5), global_max_pool("max", "conv")]
    fans = {"conv/kernel": (5 * 30, 5 * 20)}
    for kind, layer, width in (("lstm", lstm, 80), ("gru", gru, 60)):
        if kind in kinds:
            net.append(layer(kind, "embedding", 20))
            fans.update({kind + "/kernel": (30, width), kind + "/recurrent_kernel": (20, width)})
    net += [concatenate("ends", "max", *sorted(kinds & {"lstm", "gru"})), dense("logits", "ends", CLASSES)]
    resolved = resolve(framework, net)
    weights = framework.get_weights(framework.build(resolved, "matched", 0))
    limits = {name: np.sqrt(6 / sum(pair)) for name, pair in fans.items()}
    for name, limit in dict(limits, **{"embedding/kernel": 0.05}).items():
        assert 0.98 * limit < np.abs(weights[name]).max() <= limit * (1 + 1e-6), name
        assert weights[name].std() == pytest.approx(limit / np.sqrt(3), rel=0.05), name


def test_identical_starts_from_the_shared_weights(framework, net):
    resolved = resolve(framework, net, "identical")
    assert_close(framework.get_weights(framework.build(resolved, "identical", 5)), initial.weights(resolved, 5), rtol=0)


@pytest.mark.parametrize("recipe", ["defaults", "matched"])
def test_double_precision_equals_the_reference_in_every_layer(framework, net, recipe):
    if not framework.FACTS["float64"]:
        pytest.skip("states no float64")
    model, resolved = made(framework, net, recipe, "float64")
    inputs, _ = draw(6, net)
    expected = reference.layer_outputs(resolved, lively(resolved), inputs)
    assert_close(framework.layer_outputs(model, inputs), expected, rtol=1e-12, atol=1e-12)
    assert framework.predict(model, inputs).dtype == np.float64


def assert_rounded(found, exact, single, name):
    """Values that are off by no more than a few times what single precision is in NumPy."""
    rounding = max(np.abs(single - exact).max(), np.spacing(np.float32(np.abs(exact).max())))
    assert np.abs(found - exact).max() <= 8 * rounding, name


def test_single_precision_is_the_reference_but_for_rounding(framework, net):
    model, resolved = made(framework, net)
    inputs, _ = draw(30, net)
    exact, single = (reference.layer_outputs(resolved, lively(resolved), inputs, dtype) for dtype in (np.float64, np.float32))
    outputs = framework.layer_outputs(model, inputs)
    assert list(outputs) == [layer["name"] for layer in resolved]
    for name, values in outputs.items():
        assert values.shape == exact[name].shape
        assert_rounded(values, exact[name], single[name], name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_layer_alone_computes_what_the_reference_does(framework, net, dtype):
    """Fed with what the reference has there, so that no layer inherits another's fault."""
    if dtype == "float64" and not framework.FACTS["float64"]:
        pytest.skip("states no float64")
    model, resolved = made(framework, net, dtype=dtype)
    inputs, _ = draw(6, net)
    weights = lively(resolved)
    values = {name: array if array.dtype == np.int32 else array.astype(dtype)
              for name, array in reference.layer_outputs(resolved, weights, inputs).items()}
    for layer in resolved[1:]:
        given, own = [values[name] for name in layer["inputs"]], reference.own_weights(layer, weights)
        exact = reference.apply(layer, own, *(array if array.dtype == np.int32 else array.astype(np.float64) for array in given))
        found = framework.run_layer(model, layer["name"], given)
        assert found.shape == exact.shape
        if dtype == "float64":
            np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-12, err_msg=layer["name"])
        else:
            single = reference.apply(layer, reference.own_weights(layer, weights, np.float32), *given)
            assert_rounded(found, exact, single, layer["name"])
    assert_close(framework.get_weights(model), {name: array.astype(dtype) for name, array in weights.items()}, rtol=0)


def test_predictions_do_not_depend_on_the_batch(framework, net):
    model, resolved = made(framework, net)
    inputs, _ = draw(20, net)
    logits = framework.predict(model, inputs)
    assert (logits.shape, logits.dtype) == ((20, CLASSES), np.float32)
    for size in (1, 7, 20):
        np.testing.assert_allclose(framework.predict(model, inputs, size), logits, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits, reference.logits(resolved, lively(resolved), inputs), rtol=1e-5, atol=1e-5)


def test_weight_gradients_are_the_slopes_of_the_mean_loss(framework, net):
    dtype = finest(framework)
    model, resolved = made(framework, net, dtype=dtype)
    inputs, labels = draw(12, net)
    before, logits = framework.get_weights(model), framework.predict(model, inputs)
    gradients = framework.weight_gradients(model, inputs, labels)
    assert_close(framework.get_weights(model), before, rtol=0)
    np.testing.assert_array_equal(framework.predict(model, inputs), logits)
    weights = {name: array.astype(np.float64) for name, array in lively(resolved).items()}
    assert set(gradients) == {name for name in weights if not name.endswith(layers.BATCH_NORM_STATE)}
    random, tolerance = np.random.RandomState(1), {"rel": 1e-5, "abs": 1e-8} if dtype == "float64" else {"rel": 1e-3, "abs": 1e-5}
    for name, gradient in gradients.items():
        assert (gradient.shape, gradient.dtype) == (weights[name].shape, np.dtype(dtype))
        for at in some(random, gradient.shape, 5):
            expected = slope(lambda: training_loss(resolved, weights, inputs, labels), weights[name], at)
            assert gradient[at] == pytest.approx(expected, **tolerance), (name, at)


def skip_without(framework, gradient):
    if gradient not in framework.FACTS["gradients"]:
        pytest.skip("states no gradient of the {}".format(gradient))


def test_loss_gradient_is_the_slope_of_each_examples_loss(framework):
    skip_without(framework, "loss")
    dtype = finest(framework)
    model, resolved = made(framework, image_network(framework), dtype=dtype)
    images, labels = draw(4)
    images = images.astype(np.float64)
    gradient = framework.loss_gradient(model, images, labels)
    assert gradient.shape == images.shape
    weights, tolerance = lively(resolved), {"rel": 1e-5, "abs": 1e-7} if dtype == "float64" else {"rel": 1e-3, "abs": 1e-5}
    for at in some(np.random.RandomState(1), images.shape, 20):
        expected = slope(lambda of=at[0]: -log_softmax(reference.logits(resolved, weights, images))[of, labels[of]], images, at)
        assert gradient[at] == pytest.approx(expected, **tolerance)


def test_class_gradients_make_up_the_loss_gradient(framework):
    skip_without(framework, "class")
    dtype = finest(framework)
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if dtype == "float64" else {"rtol": 1e-3, "atol": 1e-5}
    model, _ = made(framework, image_network(framework), dtype=dtype)
    images, labels = draw(300)  # more than one internal chunk
    each = framework.class_gradient(model, images)
    assert each.shape == (300, CLASSES, 10, 10, 2)
    slopes = np.exp(log_softmax(framework.predict(model, images))) - np.eye(CLASSES)[labels]
    combined = np.einsum("nc,nchwk->nhwk", slopes, each)
    whole = framework.loss_gradient(model, images, labels)
    np.testing.assert_allclose(whole, combined, **tolerance)
    np.testing.assert_allclose(framework.class_gradient(model, images, labels), each[np.arange(300), labels], **tolerance)
    for part in (slice(0, 1), slice(250, 263)):  # an example's gradient doesn't depend on the others
        np.testing.assert_allclose(framework.loss_gradient(model, images[part], labels[part]), whole[part], **tolerance)
        np.testing.assert_allclose(framework.class_gradient(model, images[part]), each[part], **tolerance)


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
            slopes = (np.exp(log_softmax(logits)) - np.eye(CLASSES)[labels[batch]]) / len(batch)
            penalty = 2 * plan["l2"] * weights["logits/kernel"]
            gradients = {"logits/kernel": features[batch].T @ slopes + penalty, "logits/bias": slopes.sum(0)}
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
    dtype = finest(framework)
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype == "float64" else {"rtol": 1e-4, "atol": 1e-5}
    for examples in (50, 40):  # all of them, and those that the order names
        permutations = initial.permutations(50, 3, 7)[:, :examples]
        weights, reports = trained(framework, LINEAR, images, labels, permutations, dtype, **plan)
        expected, expected_reports = softmax_regression(images, labels, initial.weights(LINEAR, 1), permutations, plan)
        assert_close(weights, expected, **tolerance)
        np.testing.assert_allclose(reports, expected_reports, rtol=tolerance["rtol"])


def test_steps_follow_the_weight_gradients(framework, net):
    """Three epochs of one batch each are three steps by hand; l2 holds for the kernels of convolutions and dense layers alone."""
    dtype = finest(framework)
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype == "float64" else {"rtol": 1e-4, "atol": 1e-5}
    inputs, labels = draw(50, net)
    order = np.random.RandomState(0).permutation(50)[:48].reshape(3, 16).astype(np.int32)
    plan = dict(PLAN, recipe="identical", l2=0.01, epochs=3)
    trained_weights, reports = trained(framework, net, inputs, labels, order, dtype, **plan)
    model, resolved = started(framework, net, "identical", dtype), resolve(framework, net, "identical")
    penalised = {layer["name"] + "/kernel" for layer in resolved if layer["kind"] in ("conv1d", "conv2d", "dense")}
    velocity, losses = {}, []
    for batch in order:
        weights = framework.get_weights(model)
        losses.append(training_loss(resolved, weights, inputs[batch], labels[batch]))
        for name, gradient in framework.weight_gradients(model, inputs[batch], labels[batch]).items():
            penalty = 2 * plan["l2"] * weights[name] if name in penalised else 0
            velocity[name] = plan["momentum"] * velocity.get(name, 0) + gradient + penalty
            weights[name] = weights[name] - plan["learning_rate"] * velocity[name]
        framework.set_weights(model, weights)
    assert_close({name: trained_weights[name] for name in velocity}, {name: weights[name] for name in velocity}, **tolerance)
    np.testing.assert_allclose([report.loss for report in reports], losses, rtol=tolerance["rtol"])


@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_identical_trainings_agree(first, second, name):
    for framework in (first, second):
        framework.configure(1)
    net, order = chosen(name, first, second), initial.permutations(40, 2, 7)
    inputs, labels = draw(40, net)
    if first.FACTS["float64"] and second.FACTS["float64"]:
        # In double precision only rounding parts them: 6 steps of a network some 10 operations deep.
        for optimizer, rate in (("sgd", 0.05), ("adam", 0.005)):
            settings = {"dtype": "float64", "recipe": "identical", "optimizer": optimizer, "learning_rate": rate}
            one, other = (trained(framework, net, inputs, labels, order, **settings) for framework in (first, second))
            assert_close(one[0], other[0], rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(one[1], other[1], rtol=1e-9)
    one, other = (trained(framework, net, inputs, labels, order, recipe="identical") for framework in (first, second))
    assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)  # single precision: 1e9 times coarser, and no better where values cancel


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_matched_moving_variance_is_that_of_the_biased_variance(framework, net, dtype):
    if "batch_norm" not in framework.FACTS["layers"]:
        pytest.skip("states no batch_norm")
    if dtype == "float64" and not framework.FACTS["float64"]:
        pytest.skip("states no float64")
    inputs, labels = draw(3, net)
    model, resolved = made(framework, net, dtype=dtype)
    list(framework.train(model, inputs, labels, dict(PLAN, learning_rate=0.0, batch_size=3, epochs=1), None))
    old, new = lively(resolved), framework.get_weights(model)
    source = next(layer["inputs"][0] for layer in resolved if layer["name"] == "norm1")
    values = reference.layer_outputs(resolved, old, inputs)[source]
    axes = tuple(range(values.ndim - 1))
    np.testing.assert_allclose(new["norm1/mean"], 0.99 * old["norm1/mean"] + 0.01 * values.mean(axes), rtol=1e-4, atol=1e-6)
    # The unbiased variance would be 1 / 300 or 1 / 27 more, a hundredth of which would show.
    np.testing.assert_allclose(new["norm1/variance"], 0.99 * old["norm1/variance"] + 0.01 * values.var(axes), rtol=1e-6)


@pytest.fixture(scope="module")
def elsewhere():
    """`digests` of every framework, taken in another process."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    code = "import json, test_frameworks as t; print(json.dumps({f.id: t.digests(f.values[0]) for f in t.FRAMEWORKS if f.values[0]}))"
    output = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True).stdout.decode()
    return json.loads(output.splitlines()[-1])


def digests(framework):
    """Of the weights after a training of each network."""
    framework.configure(1)
    found = {}
    for net in filter(None, (make(framework) for make in NETWORKS.values())):
        weights, _ = trained(framework, net, *draw(48, net))
        found.update({net[0]["kind"] + " " + name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in weights.items()})
    return found


def test_training_repeats_in_another_process(framework, elsewhere):
    assert elsewhere[framework.__name__.rpartition(".")[2]] == digests(framework)


def test_training_repeats_bit_by_bit(framework, net):
    """With predictions between the epochs, and not with another seed."""
    inputs, labels = draw(48, net)
    first, reports = trained(framework, net, inputs, labels)
    again, reports_again = trained(framework, net, inputs, labels, between=lambda model: framework.predict(model, inputs))
    assert_close(again, first, rtol=0)
    assert reports_again == reports
    other, _ = trained(framework, net, inputs, labels, seed=8)
    assert not np.array_equal(other["logits/kernel"], first["logits/kernel"])


def test_a_twin_in_double_precision_takes_the_same_examples(framework):
    """Drawn by the framework itself from the plan's seed: in another order the weights would differ by a tenth."""
    if not framework.FACTS["float64"]:
        pytest.skip("states no float64")
    inputs, labels = draw(48)
    single, _ = trained(framework, LINEAR, inputs, labels, epochs=3)
    double, _ = trained(framework, LINEAR, inputs, labels, epochs=3, dtype="float64")
    assert_close(single, double, rtol=1e-3, atol=1e-4)


def test_training_learns(framework, net):
    """Classes that differ in which rows are bright, or in which tokens come most: a fifth is chance."""
    random = np.random.RandomState(0)
    inputs, labels = draw(400, net)
    if net[0]["kind"] == "tokens":
        inputs = np.where(random.rand(400, STEPS) < 0.7, labels[:, None], inputs).astype(np.int32)
    else:
        inputs *= 0.5
        inputs[np.arange(400), 2 * labels] += 0.5
    for recipe in ("defaults", "matched"):
        _, reports = trained(framework, net, inputs, labels, recipe=recipe, learning_rate=0.02, epochs=8)
        assert reports[-1].accuracy > 0.8
        assert reports[-1].loss < reports[0].loss


def test_a_loss_that_is_not_finite_ends_the_training(framework):
    images, labels = draw(20)
    images[3] = np.nan
    with pytest.raises(FloatingPointError):
        trained(framework, LINEAR, images, labels)


def test_impossible_trainings_are_refused(framework):
    images, labels = draw(20)
    for changes, permutations in [
        ({"recipe": "identical"}, None), ({}, np.zeros((2, 21), int)), ({}, np.zeros((3, 20), int)), ({"optimizer": "adamw"}, None)
    ]:
        with pytest.raises(ValueError, match="permutation|optimizer"):
            trained(framework, LINEAR, images, labels, permutations, **changes)
    with pytest.raises(ValueError, match="19 labels"):
        trained(framework, LINEAR, images, labels[:19])


def test_memory_mapped_inputs_are_taken(framework, tmp_path):
    images, labels = draw(20)
    path = str(tmp_path / "images.npy")
    np.save(path, images)
    mapped = np.load(path, mmap_mode="r")
    assert_close(trained(framework, LINEAR, mapped, labels)[0], trained(framework, LINEAR, images, labels)[0], rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_saved_model_comes_back(framework, net, tmp_path, dtype):
    if dtype == "float64" and not framework.FACTS["float64"]:
        pytest.skip("states no float64")
    inputs, labels = draw(10, net)
    own = resolve(framework, net, "defaults")
    for name, (model, resolved) in ("own", (framework.build(own, "defaults", 7, dtype), own)), ("set", made(framework, net, dtype=dtype)):
        folder = tmp_path / name
        folder.mkdir()
        loaded = framework.load(folder / framework.save(model, folder), resolved)
        np.testing.assert_array_equal(framework.predict(loaded, inputs), framework.predict(model, inputs))
        if net[0]["kind"] == "input" and "loss" in framework.FACTS["gradients"]:
            np.testing.assert_array_equal(framework.loss_gradient(loaded, inputs, labels), framework.loss_gradient(model, inputs, labels))
        assert_close(framework.get_weights(loaded), framework.get_weights(model), rtol=0)


class Intruder:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_loading_runs_no_code(framework, tmp_path):
    model, resolved = made(framework, image_network(framework))
    file, trace = tmp_path / framework.save(model, tmp_path), tmp_path / "ran"
    file.write_bytes(pickle.dumps(Intruder(trace)))
    with pytest.raises(Exception):  # noqa: B017 - each format has its own error; what counts is that nothing ran
        framework.load(file, resolved)
    assert not trace.exists()


def run_onnx(path, inputs):
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,), (taken,) = session.get_inputs(), session.get_outputs()
    dtype = {"float32": "float", "int32": "int32"}[inputs.dtype.name]
    stated = given.name, given.type, tuple(given.shape[1:]), taken.name
    assert stated == ("input", "tensor({})".format(dtype), inputs.shape[1:], "logits")
    return session.run(None, {"input": inputs})[0]


def run_saved_model(path, inputs):
    tensorflow = pytest.importorskip("tensorflow")
    return tensorflow.saved_model.load(str(path)).signatures["serving_default"](input=tensorflow.constant(inputs))["logits"].numpy()


def run_fake(path, images):
    with np.load(str(path), allow_pickle=False) as weights:
        return reference.logits(LINEAR, weights, images, np.float32)


READERS = {"onnx": run_onnx, "saved_model": run_saved_model, "fake": run_fake}
TARGETS = [
    pytest.param(framework.values[0], target, id="{}-{}".format(framework.id, target), marks=framework.marks)
    for framework in FRAMEWORKS for target in (framework.values[0].FACTS["exports"] if framework.values[0] else ["none"])
]


@pytest.mark.filterwarnings("ignore")  # of the exporters' own making
@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize(("framework", "target"), TARGETS)
def test_exports_compute_what_the_framework_computes(framework, target, name, tmp_path):
    framework.configure(1)
    net = chosen(name, framework)
    model, resolved = made(framework, net)
    path = tmp_path / framework.export(model, resolved, target, tmp_path)
    for count in (1, 30):  # the batch is free
        inputs, _ = draw(count, net)
        exact = reference.logits(resolved, lively(resolved), inputs)
        own = framework.predict(model, inputs)
        logits = framework.predict(framework.load(path, resolved), inputs) if target == "native" else READERS[target](path, inputs)
        assert np.abs(logits - own).max() <= 8 * max(np.abs(own - exact).max(), np.spacing(np.float32(np.abs(exact).max())))
    size = sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())
    assert size < 4 * layers.count(resolved) + 30_000 * len(resolved)  # nothing beside the weights and the operators


def test_unknown_exports_are_refused(framework, tmp_path):
    model, resolved = made(framework, image_network(framework))
    with pytest.raises(ValueError, match="nonsense"):
        framework.export(model, resolved, "nonsense", tmp_path)
