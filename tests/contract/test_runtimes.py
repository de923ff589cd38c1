"""What every runtime promises, on a small network trained on real digits by each framework that has a way to it.

A component's own facts decide what is asked of it: a pair without a common format is no test, a missing package is a skip that says so.
"""

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from sweep import components, layers, quantization

NATIVE = "native"
TRAINED, TESTED, CALIBRATION = 4000, 1000, 500
FLOAT32_NOISE = 8  # a conversion may be that many times as far from its source as the source is from its own float64
PLAN = {
    "optimizer": "adam", "learning_rate": 0.001, "momentum": 0.0, "epsilon": None, "l2": 0.0, "batch_size": 32, "epochs": 4, "decay": [],
    "recipe": "matched", "seed": 1,
}


class Route(NamedTuple):
    """A runtime, a framework with a way to it, and the format between the two."""

    runtime: ModuleType
    framework: ModuleType
    format: str


class Trained(NamedTuple):
    """A framework's exported network, and its own logits for the test images, also in float64."""

    path: Path
    details: dict[str, Any]
    logits: np.ndarray
    exact: np.ndarray

    @property
    def tolerance(self):
        return FLOAT32_NOISE * np.abs(self.logits - self.exact).max()


class Deployed(NamedTuple):
    """A converted network, opened, with its logits for the test images."""

    path: Path
    session: Any
    logits: np.ndarray
    source: Trained


def found(kind):
    """Modules by name, and a skipped parameter for each that can't be imported."""
    modules, missing = {}, []
    for name in components.names(kind):
        try:
            modules[name] = components.load(kind, name)
        except ImportError as error:
            missing.append(pytest.param(None, None, marks=pytest.mark.skip(reason=f"{kind} {name}: {error}"), id=name))
    return modules, missing


RUNTIMES, _without = found("runtimes")
FRAMEWORKS, _also_without = found("frameworks")
MISSING = [*_without, *_also_without]
ROUTES = {
    f"{name}-{source}": Route(runtime, framework, target)
    for name, runtime in RUNTIMES.items()
    for source, framework in FRAMEWORKS.items()
    for target in framework.FACTS["exports"]
    if target in runtime.FACTS["accepts"]
}
each_runtime = pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=RUNTIMES)
each_row = pytest.mark.parametrize(
    ("route", "row"),
    [
        *(pytest.param(route, row, id=f"{name}-{row}") for name, route in ROUTES.items() for row in route.runtime.FACTS["quantizations"]),
        *MISSING,
    ],
)


@pytest.fixture(scope="module")
def digits():
    mnist = components.load("datasets", "mnist")
    source = mnist.find([Path(os.environ["SWEEP_DATA"])] if "SWEEP_DATA" in os.environ else [], allow_subset=True)
    if source is None:
        pytest.skip(f"no MNIST here. {mnist.WANTED}")
    arrays = mnist.read(source)
    return {
        "train": (arrays["x_train"][:TRAINED] / 255).astype(np.float32),
        "labels": arrays["y_train"][:TRAINED],
        "test": (arrays["x_test"][:TESTED] / 255).astype(np.float32),
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory, digits):
    """The trained network of a route's framework in the route's format; each is made once."""
    made = {}

    def make(route):
        key = (route.framework, route.format)
        if key not in made:
            made[key] = train(route, tmp_path_factory.mktemp(route.format), digits)
        return made[key]

    return make


def train(route, folder, digits):
    framework = route.framework
    framework.configure(1)
    resolved = layers.resolved(network_for(framework), PLAN["recipe"], framework.FACTS["own"])
    model = framework.build(resolved, PLAN["recipe"], PLAN["seed"])
    for _report in framework.train(model, digits["train"], digits["labels"], PLAN, None):
        pass
    file = framework.export(model, resolved, route.format, folder)
    exact = framework.build(resolved, PLAN["recipe"], PLAN["seed"], dtype="float64")
    framework.set_weights(exact, framework.get_weights(model))
    name = framework.__name__.rpartition(".")[2]
    details = {"framework": name, "format": route.format, "file": file, "layers": resolved, "classes": 10, "input_shape": [28, 28, 1]}
    return Trained(folder / file, details, framework.predict(model, digits["test"]), framework.predict(exact, digits["test"]))


def network_for(framework):
    """LeNet-5, or the smallest network where the framework has no convolution."""
    networks = [components.load("architectures", name).layers((28, 28, 1), 10) for name in ("lenet5", "linear")]
    return next(net for net in networks if {layer["kind"] for layer in net} <= set(framework.FACTS["layers"]))


@pytest.fixture(scope="module")
def deploy(tmp_path_factory, digits, trained):
    """A route's network converted to a row and opened; each is made once."""
    made = {}

    def make(route, row):
        key = (route.runtime, route.framework, row)
        if key not in made:
            source, folder = trained(route), tmp_path_factory.mktemp(row)
            images = digits["train"][:CALIBRATION] if row in route.runtime.FACTS["calibrated"] else None
            path = folder / route.runtime.convert(source.path, route.format, folder, row, images)
            session = route.runtime.open(path, 1, source.details)
            made[key] = Deployed(path, session, route.runtime.predict(session, digits["test"]), source)
        return made[key]

    return make


def size(path):
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())


@each_runtime
def test_facts_are_json_and_fit_the_rows(runtime):
    facts = runtime.FACTS
    assert json.loads(json.dumps(facts)) == facts
    assert set(facts["quantizations"]) <= set(quantization.ROWS)
    assert facts["calibrated"] == [row for row in facts["quantizations"] if quantization.ROWS[row].calibrated]
    assert set(facts["batch_dependent"]) <= set(facts["quantizations"])
    assert "float32" in facts["quantizations"]  # what every other row is compared with


@each_row
def test_predictions_stay_close_to_the_source(deploy, route, row):
    model = deploy(route, row)
    reference, difference = model.source.logits, np.abs(model.logits - model.source.logits)
    differs = model.logits.argmax(axis=1) != reference.argmax(axis=1)
    first_two = np.sort(reference, axis=1)[:, -2:]
    assert model.logits.shape == reference.shape
    assert model.logits.dtype == np.float32
    assert len(np.unique(reference.argmax(axis=1))) == 10  # a degenerate source would agree with anything
    if row == "float32":
        assert difference.max() <= model.source.tolerance
        assert not differs[first_two[:, 1] - first_two[:, 0] > 2 * model.source.tolerance].any()
    elif row == "float16":
        assert difference.max() <= 0.01 * np.abs(reference).max()  # half precision has 11 bits
        assert differs.mean() <= 0.005
    else:
        assert np.median(difference) > model.source.tolerance  # something was quantized
        assert difference.mean() <= 0.02 * np.abs(reference).max()
        assert differs.mean() <= 0.03


@each_row
def test_file_size_is_that_of_the_stored_weights(deploy, route, row):
    model = deploy(route, row)
    weights = 4 * layers.count(model.source.details["layers"])
    share = {"float32": 1.0, "float16": 0.5}.get(row, 0.25)
    if route.format != NATIVE:
        assert share * weights <= size(model.path) <= (share + 0.15) * weights


@each_row
def test_a_prediction_depends_on_the_batch_only_where_a_fact_says_so(deploy, digits, route, row):
    model, images = deploy(route, row), digits["test"][:65]
    together, alone, uneven = (route.runtime.predict(model.session, images, batch_size) for batch_size in (65, 1, 32))
    spread = max(np.abs(together - alone).max(), np.abs(together - uneven).max())
    if row in route.runtime.FACTS["batch_dependent"]:
        assert spread > model.source.tolerance
    else:
        assert spread <= model.source.tolerance
    assert np.array_equal(alone, route.runtime.predict(model.session, images, 1))


@each_row
def test_images_are_left_as_they_were_and_logits_are_the_callers(deploy, digits, route, row):
    model, images = deploy(route, row), digits["test"][:10].copy()
    images.setflags(write=False)  # as memory-mapped ones are
    first = route.runtime.predict(model.session, images)
    kept = first.copy()
    route.runtime.predict(model.session, images[::-1].copy())
    assert np.array_equal(first, kept)
    assert np.array_equal(images, digits["test"][:10])


@each_row
def test_description_is_json(deploy, route, row):
    described = route.runtime.describe(deploy(route, row).session)
    assert described
    assert json.loads(json.dumps(described)) == described


@each_row
def test_truncated_file_is_refused_by_name(deploy, tmp_path, route, row):
    model = deploy(route, row)
    damaged = tmp_path / model.path.name
    damaged.write_bytes(model.path.read_bytes()[:size(model.path) // 2])
    with pytest.raises(Exception, match=damaged.name):
        route.runtime.open(damaged, 1, model.source.details)


@each_runtime
def test_impossible_requests_are_refused(runtime, tmp_path):
    target = next(iter(runtime.FACTS["accepts"]))
    with pytest.raises(ValueError, match="int3"):
        runtime.convert(tmp_path / "model", target, tmp_path, "int3", None)
    with pytest.raises(ValueError, match="tape"):
        runtime.convert(tmp_path / "model", "tape", tmp_path, "float32", None)
    for row in runtime.FACTS["calibrated"]:
        for images in (None, np.zeros((0, 28, 28, 1), np.float32)):
            with pytest.raises(ValueError, match="calibration"):
                runtime.convert(tmp_path / "model", target, tmp_path, row, images)
    with pytest.raises(Exception, match="nothing-here"):
        runtime.convert(tmp_path / "nothing-here", target, tmp_path, "float32", None)
