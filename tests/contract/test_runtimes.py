"""What every runtime promises, on a small network trained on real digits by each framework that has a way to it.

A component's own facts decide what is asked of it: a pair without a common format is no test, a missing package is a skip that says so.
In an interpreter of a toolchain, which has no framework, the exported networks come from the folder SWEEP_EXPORTED (`exported.py`).
"""

import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from sweep import components, layers, quantization

sys.path.insert(0, str(Path(__file__).parent))
import exported

NATIVE = "native"
CALIBRATION = 500
FLOAT32_NOISE = 8  # a conversion may be that many times as far from its source as the source is from its own float64
GIVEN = Path(os.environ["SWEEP_EXPORTED"]) if "SWEEP_EXPORTED" in os.environ else None


class Route(NamedTuple):
    """A runtime, the name of a framework with a way to it, and the format between the two."""

    runtime: ModuleType
    framework: str
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
if GIVEN is None:
    EXPORTS = [(name, target) for name, framework in FRAMEWORKS.items() for target in framework.FACTS["exports"]]
else:
    EXPORTS = [tuple(path.parent.name.split("-")) for path in sorted(GIVEN.glob("*/details.json"))]
ROUTES = {
    f"{name}-{framework}-{target}": Route(runtime, framework, target)
    for name, runtime in RUNTIMES.items() for framework, target in EXPORTS if target in runtime.FACTS["accepts"]
}
each_runtime = pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=RUNTIMES)
each_row = pytest.mark.parametrize(
    ("route", "row"),
    [
        *(pytest.param(route, row, id=f"{name}-{row}") for name, route in ROUTES.items() for row in route.runtime.FACTS["quantizations"]),
        *MISSING,
    ],
)


# significant bits of a weight, and those that it takes in a file
BITS = {"float16": 11, "bfloat16": 8, "int8": 8, "int4": 4, "uint8": 8, "uint16": 16, "uint16, uint8 or uint4": 16}
STORED_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4, "uint8": 8, "uint16": 16, "uint16, uint8 or uint4": 16}


def defaults(options):
    return {name: option["default"] for name, option in options.items()}


@pytest.fixture(autouse=True)
def usual_options(request):
    runtime = getattr(request.node, "callspec", None) and request.node.callspec.params.get("route", None)
    if runtime is not None and runtime.runtime.FACTS["options"]:
        runtime.runtime.set_options(dict(defaults(runtime.runtime.FACTS["options"]), seed=0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return GIVEN or tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def digits(folder):
    arrays = exported.digits(folder)
    if arrays is None:
        pytest.skip(f"no MNIST here. {components.load('datasets', 'mnist').WANTED}")
    return arrays


@pytest.fixture(scope="module")
def trained(folder, digits):
    """The trained network of a route's framework in the route's format; each is made once."""
    made = {}

    def make(route):
        key = (route.framework, route.format)
        if key not in made:
            place = folder / "-".join(key) if GIVEN else exported.exported(folder, *key[:1], FRAMEWORKS[route.framework], route.format)
            details = json.loads((place / "details.json").read_text())
            with np.load(place / "logits.npz", allow_pickle=False) as own:
                made[key] = Trained(place / details["file"], details, own["logits"], own["exact"])
        return made[key]

    return make


@pytest.fixture(scope="module")
def deploy(tmp_path_factory, digits, trained):
    """A route's network converted to a row and opened; each is made once."""
    made = {}

    def make(route, row):
        key = (route.runtime, route.framework, route.format, row)
        if key not in made:
            source, folder = trained(route), tmp_path_factory.mktemp(row)
            images = digits["train"][:CALIBRATION] if row in route.runtime.FACTS["calibrated"] else None
            options = defaults(route.runtime.FACTS["quantizations"][row])
            path = folder / route.runtime.convert(source.path, route.format, folder, row, images, options)
            session = route.runtime.open(path, 1, source.details | {"quantization": row})
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
    for options in (facts["options"], *facts["quantizations"].values()):
        for option in options.values():
            assert option.keys() == {"meaning", "values", "default"}
            assert not option["values"] or option["default"] in option["values"]
    assert facts["layer_outputs"] == hasattr(runtime, "layer_outputs")
    assert bool(facts["options"]) == hasattr(runtime, "set_options")
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
    else:
        bits = BITS[quantization.ROWS[row].weights]
        assert np.median(difference) > model.source.tolerance  # something was quantized
        assert difference.mean() <= 5 * 2.0 ** -bits * np.abs(reference).max()
        assert differs.mean() <= max(0.005, 8 * 2.0 ** -bits)


@each_row
def test_file_size_is_that_of_the_stored_weights(deploy, route, row):
    model = deploy(route, row)
    weights = 4 * layers.count(model.source.details["layers"])
    share = STORED_BITS[quantization.ROWS[row].weights] / 32
    if route.format != NATIVE:
        assert share * weights <= size(model.path) <= (share + 0.17) * weights


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
    (shutil.copytree if model.path.is_dir() else shutil.copyfile)(model.path, damaged)
    largest = max((file for file in [damaged, *damaged.rglob("*")] if file.is_file()), key=size)
    os.truncate(largest, size(largest) // 2)
    with pytest.raises(Exception, match=damaged.name):
        route.runtime.open(damaged, 1, model.source.details)


@each_row
def test_layers_of_the_deployed_model_lead_to_its_outputs(deploy, digits, route, row):
    if not route.runtime.FACTS["layer_outputs"]:
        pytest.skip("the runtime shows no layers")
    model, images = deploy(route, row), digits["test"][:8]
    tensors = route.runtime.layer_outputs(model.path, 1, model.source.details | {"quantization": row}, images)
    assert len(tensors) >= 3
    assert all(values.dtype.kind == "f" and len(values) in (1, 8) for values in tensors.values())
    logits = [values for values in tensors.values() if values.shape == (8, 10)]
    limit = model.source.tolerance if row == "float32" else 0.1 * np.abs(model.logits).max()
    assert min(np.abs(values - model.logits[:8]).max() for values in logits) <= limit


@each_runtime
def test_impossible_requests_are_refused(runtime, tmp_path):
    target = next(iter(runtime.FACTS["accepts"]))
    with pytest.raises(ValueError, match="int3"):
        runtime.convert(tmp_path / "model", target, tmp_path, "int3", None, {})
    with pytest.raises(ValueError, match="tape"):
        runtime.convert(tmp_path / "model", "tape", tmp_path, "float32", None, {})
    for row in runtime.FACTS["calibrated"]:
        for images in (None, np.zeros((0, 28, 28, 1), np.float32)):
            with pytest.raises(ValueError, match="calibration inputs"):
                runtime.convert(tmp_path / "model", target, tmp_path, row, images, defaults(runtime.FACTS["quantizations"][row]))
    for row, options in runtime.FACTS["quantizations"].items():
        if options:
            with pytest.raises(ValueError, match="needs the option"):
                runtime.convert(tmp_path / "model", target, tmp_path, row, None, {})
    with pytest.raises(Exception, match="nothing-here"):
        runtime.convert(tmp_path / "nothing-here", target, tmp_path, "float32", None, {})
