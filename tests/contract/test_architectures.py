"""The same design in every framework: equal parameter counts, and equal logits once the weights are carried over."""

import os
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from sweep import components, initial, layers, reference

EXAMPLES = 1000
PARITY_FACTOR = 8  # a rebuilt network may be that many times as far from its source as the source is from float64


def found(kind):
    """Every component of a kind; None where its package is missing."""
    modules = {}
    for name in components.names(kind):
        try:
            modules[name] = components.load(kind, name)
        except ModuleNotFoundError as error:
            if error.name.startswith("sweep"):
                raise
            modules[name] = None
    return modules


ARCHITECTURES, FRAMEWORKS = found("architectures"), found("frameworks")
STATED = [
    pytest.param(name, shape, classes, id=f"{name}-{'x'.join(map(str, shape))}")
    for name, module in ARCHITECTURES.items() for shape, classes in module.PARAMETERS
]


def builds(framework, net):
    return framework is not None and {layer["kind"] for layer in net} <= set(framework.FACTS["layers"])


def cells(count):
    """Each stated network with every ordered choice of `count` frameworks that know its layers; a missing package is a skip."""
    marked = []
    for architecture, shape, classes in (param.values for param in STATED):
        net = ARCHITECTURES[architecture].layers(shape, classes)
        for chosen in permutations(FRAMEWORKS, count):
            missing = [name for name in chosen if FRAMEWORKS[name] is None]
            marks = [pytest.mark.skip(reason=f"not installed: {', '.join(missing)}")] if missing else []
            if missing or all(builds(FRAMEWORKS[name], net) for name in chosen):
                marked.append(pytest.param(architecture, shape, classes, *chosen, id="-".join([architecture, *chosen]), marks=marks))
    return marked


@pytest.mark.parametrize(("architecture", "shape", "classes"), STATED)
def test_the_list_has_as_many_parameters_as_stated(architecture, shape, classes):
    module = ARCHITECTURES[architecture]
    net = module.layers(shape, classes)
    assert layers.count(net) == module.PARAMETERS[shape, classes]
    assert layers.shapes(net)[net[-1]["name"]] == (classes,)
    assert layers.shapes(net)[net[0]["name"]] == shape
    assert len({layer["name"] for layer in net}) == len(net)


@pytest.mark.parametrize(("architecture", "shape", "classes", "framework"), cells(1))
def test_a_framework_counts_as_many_parameters(architecture, shape, classes, framework):
    framework, net = FRAMEWORKS[framework], ARCHITECTURES[architecture].layers(shape, classes)
    framework.configure(1)
    model = framework.build(framework.resolve(net, "matched"), "matched", 0)
    assert framework.count_parameters(model) == ARCHITECTURES[architecture].PARAMETERS[shape, classes]


@pytest.fixture(scope="module")
def images():
    """A thousand images of a shape: real digits where they are at hand and fit, else noise."""
    digits = find_digits()

    def give(shape):
        if digits is not None and shape == digits.shape[1:]:
            return digits
        return np.random.RandomState(0).rand(EXAMPLES, *shape).astype(np.float32)

    return give


def find_digits():
    mnist = components.load("datasets", "mnist")
    source = mnist.find([Path(os.environ["SWEEP_DATA"])] if "SWEEP_DATA" in os.environ else [], allow_subset=True)
    return None if source is None else (mnist.read(source)["x_test"][:EXAMPLES] / 255).astype(np.float32)


@pytest.fixture(scope="module")
def sources(images):
    """A framework's network with lively weights: (resolved list, weights, its logits, the exact logits). Each is made once."""
    made, exact = {}, {}

    def make(architecture, shape, classes, name):
        framework, key = FRAMEWORKS[name], (architecture, shape, classes)
        if (key, name) not in made:
            framework.configure(1)
            resolved = framework.resolve(ARCHITECTURES[architecture].layers(shape, classes), "identical")
            weights = lively(resolved)
            if key not in exact:
                exact[key] = reference.logits(resolved, weights, images(shape))
            model = framework.build(resolved, "identical", 0)
            framework.set_weights(model, weights)
            made[key, name] = resolved, framework.get_weights(model), framework.predict(model, images(shape)), exact[key]
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


@pytest.mark.parametrize(("architecture", "shape", "classes", "source", "target"), cells(2))
def test_carried_weights_give_the_same_logits(architecture, shape, classes, source, target, images, sources):
    resolved, weights, logits, exact = sources(architecture, shape, classes, source)
    tolerance = PARITY_FACTOR * np.abs(logits - exact).max()
    framework = FRAMEWORKS[target]
    framework.configure(1)
    rebuilt = framework.build(resolved, "identical", 1)
    framework.set_weights(rebuilt, weights)
    carried = framework.predict(rebuilt, images(shape))
    assert tolerance < 1e-4 * np.abs(exact).max()  # rounding, and no more
    assert np.abs(carried - logits).max() <= tolerance
    first_two = np.sort(logits, axis=1)[:, -2:]
    differs = carried.argmax(axis=1) != logits.argmax(axis=1)
    assert not differs[first_two[:, 1] - first_two[:, 0] > 2 * tolerance].any()
