"""What several tests share: components as the driver knows them, sweeps and plans made by hand, and folders that are costly to fill."""

import copy
import os
from pathlib import Path

import pytest

from sweep import layers, plan, planning
from sweep.facts import Component, Facts
from sweep.schema import Sweep
from sweep.toolchain import DEFAULT, base

ROOT = Path(__file__).parent.parent


def option(default, *others):
    return {"meaning": "", "values": [default, *others] if others else [], "default": default}


FRAMEWORKS = {
    "pytorch": {"exports": ["native", "onnx"], "layers": list(layers.KINDS)},
    "tensorflow": {"exports": ["native", "onnx", "saved_model"], "layers": list(layers.KINDS)},
    "fake": {"exports": ["native", "fake"], "layers": ["input", "normalize", "flatten", "dense"], "options": {"faults": "", "sleep_s": ""}},
}
RUNTIMES = {
    "native": {"accepts": {"native": "native"}, "quantizations": {"float32": {}}, "float64": True},
    "onnxruntime": {
        "accepts": {"onnx": "onnx"},
        "quantizations": {"float32": {}, "float16": {}, "dynamic_int8": {}, "static_int8": {"granularity": option("channel", "tensor")}},
        "calibrated": ["static_int8"],
        "options": {"optimization": option("all", "basic", "disabled")},
    },
    "litert": {"accepts": {"saved_model": "tflite", "tflite": "tflite"}, "quantizations": {"float32": {}, "static_int8": {}}, "calibrated": ["static_int8"]},
    "fake": {"accepts": {"fake": "fake"}, "quantizations": {"float32": {}, "dynamic_int8": {}}, "options": {"faults": option({}), "sleep_s": option(0.0)}},
}
_FRAMEWORK = {"optimizers": ["sgd", "adam"], "gradients": ["loss", "class"], "float64": True, "processors": ["cpu", "gpu"], "options": {}, "own": {}, "variants": {}}
_RUNTIME = {"calibrated": [], "batch_dependent": [], "layer_outputs": False, "float64": False, "processors": ["cpu"], "options": {}}


def _component(kind, name, facts, changes):
    missing, home = changes.pop("missing", ""), changes.pop("toolchain", DEFAULT)
    version = changes.pop("version", f"{name} 1.0")
    lock, convert_lock = changes.pop("lock", f"lock of {name}"), changes.pop("convert_lock", f"lock of {name} and its converters")
    if missing:
        return Component(kind, name, base(name), home, {}, "", "", "", missing)
    return Component(kind, name, base(name), home, copy.deepcopy(facts | changes), version, lock, convert_lock)


@pytest.fixture
def make_facts():
    """Facts of three frameworks and four runtimes; arguments change those of one by its name, such as `pytorch={"gradients": []}`.

    The two that are called fake are changed together.
    """

    def make(**changes):
        return Facts(
            {name: _component("frameworks", name, _FRAMEWORK | facts, dict(changes.get(name, {}))) for name, facts in FRAMEWORKS.items()},
            {name: _component("runtimes", name, _RUNTIME | facts, dict(changes.get(name, {}))) for name, facts in RUNTIMES.items()},
            _component("attacks", "the attacks", {}, dict(changes.get("attacks", {}))),
        )

    return make


@pytest.fixture
def make_sweep():
    """A sweep of one cell, with these top-level keys in place of its own; `grid` gives axes in place of its own."""

    def make(grid=None, **content):
        axes = {"framework": ["pytorch"], "dataset": ["mnist"], "architecture": ["lenet5"]}
        grids = [axes | each for each in ([grid or {}] if not isinstance(grid, list) else grid)]
        return Sweep.model_validate({"name": "test", "grid": grids, "measure": {"enabled": False}} | content)

    return make


@pytest.fixture
def make_plan(make_sweep, make_facts):
    """The plan of such a sweep, on such facts."""
    data = {
        "mnist": plan.PreparedData("mnist", "data of mnist", "splits of mnist", (28, 28, 1), 10),
        "cifar10": plan.PreparedData("cifar10", "data of cifar10", "splits of cifar10", (32, 32, 3), 10),
        "synthetic": plan.PreparedData("synthetic", "data of synthetic", "splits of synthetic", (8, 8, 1), 4),
    }

    here = plan.Host("here", "a processor", "cpu")

    def make(grid=None, facts=None, host=here, data=data, **content):
        return planning.make(make_sweep(grid, **content), facts or make_facts(), data, host)

    return make


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache folder for sweeps of this run of the tests alone: decoded data, and what components state of themselves."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """The content of a store's database without experiments of ours; to let MLflow create one takes seconds."""
    from mlflow.tracking import MlflowClient  # late: most tests do without it

    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path.read_bytes()


@pytest.fixture
def database(tmp_path, empty_database):
    """The path of such a database in a folder of its own."""
    path = tmp_path / "mlruns" / "mlflow.db"
    path.parent.mkdir()
    path.write_bytes(empty_database)
    return path


@pytest.fixture(autouse=True, scope="session")
def _quiet_mlflow():
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
