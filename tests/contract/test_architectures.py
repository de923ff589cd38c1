"""The same design in every framework: equal parameter counts, and equal logits once the weights are carried over."""

import os
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from sweep import components, initial, layers, reference

EXAMPLES, FEW = 1000, 32  # inputs of a network, and of one with more than a million parameters, which takes its time
PARITY_FACTOR = 8  # a rebuilt network may be that many times as far from its source as the source is from float64


def found(kind):
    """Every component of a kind; None where its package is missing."""
    modules = {}
    for name in components.names(kind):
        try:
            modules[name] = components.load(kind, name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("sweep"):
                raise
            modules[name] = None
    return modules


ARCHITECTURES, FRAMEWORKS = found("architectures"), found("frameworks")
STATED = [
    pytest.param(name, arguments, id=f"{name}-{'x'.join(map(str, arguments[0]))}")
    for name, module in ARCHITECTURES.items() for arguments in module.PARAMETERS
]


def network(architecture, arguments):
    """The neutral list with equal formulas."""
    return layers.resolved(ARCHITECTURES[architecture].layers(*arguments), "identical", {})


def builds(framework, net):
    if framework is None or not {layer["kind"] for layer in net} <= set(framework.FACTS["layers"]):
        return False
    variants = framework.FACTS["variants"]
    return all(layer[field] in known for layer in net for field, known in variants.get(layer["kind"], {}).items())


def cells(count):
    """Each stated network with every ordered choice of `count` frameworks that know its layers; a missing package is a skip."""
    marked = []
    for architecture, arguments in (param.values for param in STATED):
        net = network(architecture, arguments)
        for chosen in permutations(FRAMEWORKS, count):
            missing = [name for name in chosen if FRAMEWORKS[name] is None]
            marks = [pytest.mark.skip(reason=f"not installed: {', '.join(missing)}")] if missing else []
            if missing or all(builds(FRAMEWORKS[name], net) for name in chosen):
                marked.append(pytest.param(architecture, arguments, *chosen, id="-".join([architecture, *chosen]), marks=marks))
    return marked


@pytest.mark.parametrize(("architecture", "arguments"), STATED)
def test_the_list_has_as_many_parameters_as_stated(architecture, arguments):
    net, (shape, classes) = network(architecture, arguments), arguments[:2]
    assert layers.count(net) == ARCHITECTURES[architecture].PARAMETERS[arguments]
    assert layers.shapes(net)[net[-1]["name"]] == (classes,)
    assert layers.shapes(net)[net[0]["name"]] == shape
    assert len({layer["name"] for layer in net}) == len(net)


@pytest.mark.parametrize(
    ("name", "mebibytes"), [("vgg16", 129), ("textcnn", 13), ("lstm", 16), ("gru", 15)],
)
def test_four_bytes_for_each_parameter_are_the_size_that_the_study_states(name, mebibytes):
    (parameters,) = ARCHITECTURES[name].PARAMETERS.values()
    assert -(-4 * parameters // (1 << 20)) == mebibytes


@pytest.mark.parametrize("name", ["textcnn", "lstm", "gru"])
def test_a_network_for_texts_refuses_images(name):
    with pytest.raises(ValueError, match="it reads texts, not images"):
        ARCHITECTURES[name].layers((32, 32, 3), 10)


@pytest.mark.parametrize(("architecture", "arguments", "framework"), cells(1))
def test_a_framework_counts_as_many_parameters(architecture, arguments, framework):
    framework = FRAMEWORKS[framework]
    framework.configure(1)
    model = framework.build(network(architecture, arguments), "identical", 0)
    assert framework.count_parameters(model) == ARCHITECTURES[architecture].PARAMETERS[arguments]


@pytest.fixture(scope="module")
def inputs():
    """Inputs for a network: real digits where they are at hand and fit, else noise."""
    digits = find_digits()

    def give(net):
        shape, random = tuple(net[0]["shape"]), np.random.RandomState(0)
        count = FEW if layers.count(net) > 1_000_000 else EXAMPLES
        if net[0]["kind"] == "tokens":
            return random.randint(0, net[0]["vocabulary"], (count, *shape)).astype(np.int32)
        if digits is not None and shape == digits.shape[1:]:
            return digits[:count]
        return random.rand(count, *shape).astype(np.float32)

    return give


def find_digits():
    mnist = components.load("datasets", "mnist")
    source = mnist.find([Path(os.environ["SWEEP_DATA"])] if "SWEEP_DATA" in os.environ else [], allow_subset=True)
    return None if source is None else (mnist.read(source)["x_test"][:EXAMPLES] / 255).astype(np.float32)


@pytest.fixture(scope="module")
def sources(inputs):
    """A framework's network with lively weights: (its weights, its logits, the exact logits). Each is made once."""
    made, exact = {}, {}

    def make(architecture, arguments, name):
        framework, key = FRAMEWORKS[name], (architecture, arguments)
        if (key, name) not in made:
            framework.configure(1)
            net = network(architecture, arguments)
            weights = lively(net)
            if key not in exact:
                exact[key] = reference.logits(net, weights, inputs(net))
            model = framework.build(net, "identical", 0)
            framework.set_weights(model, weights)
            made[key, name] = framework.get_weights(model), framework.predict(model, inputs(net)), exact[key]
        return made[key, name]

    return make


def lively(resolved):
    """Initial weights, with no parameter at its neutral value."""
    random, weights = np.random.RandomState(1), initial.weights(resolved, 0)
    for name, array in weights.items():
        if name.endswith(("gamma", "variance")):
            array[...] = random.uniform(0.5, 1.5, array.shape)
        elif not name.endswith("kernel"):
            array[...] = random.normal(0, 0.1, array.shape)
    return weights


@pytest.mark.parametrize(("architecture", "arguments", "source", "target"), cells(2))
def test_carried_weights_give_the_same_logits(architecture, arguments, source, target, inputs, sources):
    net = network(architecture, arguments)
    weights, logits, exact = sources(architecture, arguments, source)
    tolerance = PARITY_FACTOR * np.abs(logits - exact).max()
    framework = FRAMEWORKS[target]
    framework.configure(1)
    rebuilt = framework.build(net, "identical", 1)
    framework.set_weights(rebuilt, weights)
    carried = framework.predict(rebuilt, inputs(net))
    assert tolerance < 1e-4 * np.abs(exact).max()  # rounding, and no more
    assert np.abs(carried - logits).max() <= tolerance
    first_two = np.sort(logits, axis=1)[:, -2:]
    differs = carried.argmax(axis=1) != logits.argmax(axis=1)
    assert not differs[first_two[:, 1] - first_two[:, 0] > 2 * tolerance].any()
