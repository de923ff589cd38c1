"""Sweeps over frameworks of other environments: those that are installed, and those that are broken in every way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import ENVIRONMENT, ROOT, Store

from sweep import toolchain
from sweep.cache import cache_folder
from sweep.installation import install, state
from sweep.toolchain import RECORD, Definition

FAKE_TOOLCHAIN = """
python = "{version}"
installer = ["pip"]
packages = ["numpy==0"]
[frameworks]
"fake@{name}" = "fake"
"""
SOUND = f'exec {sys.executable} "$@"'
DEFINITIONS = sorted(toolchain.definitions().values(), key=lambda definition: definition.name)


def slow_suite(config: pytest.Config) -> bool:
    return str(config.getoption("-m")) == "slow"


@pytest.fixture(scope="module")
def ready(request: pytest.FixtureRequest) -> list[Definition]:
    """The shipped toolchains that are installed; the slow suite installs them all."""
    if slow_suite(request.config):
        for definition in DEFINITIONS:
            install(definition, print)
    return [definition for definition in DEFINITIONS if state(definition).word == "ready"]


@pytest.fixture(scope="module")
def sweep(ready: list[Definition], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A real sweep: one training and one transplant in each framework, and eight equal steps beside those of another."""
    store = Store(tmp_path_factory.mktemp("apart") / "store", cache_folder())
    config = store.write(
        "apart",
        grid={
            "framework": ["pytorch", *(framework_of(definition) for definition in ready if definition.frameworks)], "dataset": ["mnist"], "architecture": ["lenet1"],
            "recipe": ["identical"], "weights": ["trained", "same"], "runtime": ["native"],
        },
        data={"mnist": {"allow_subset": True}}, train={"epochs": 2, "examples": 1000, "batch_size": 32, "test_examples": 500},
        same_weights_from="pytorch", trace={"steps": 8, "against": "pytorch"}, diagnose={"when": "always"},
    )
    command = store.start(config)
    assert command.wait(600) == 0, command.output
    return store


def framework_of(definition: Definition) -> str:
    """The first value that a toolchain offers: the one without a version, where there is one."""
    return min(definition.frameworks, key=len)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("definition", [each for each in DEFINITIONS if each.frameworks], ids=lambda definition: definition.name)
def test_it_trains_and_takes_over_weights(definition: Definition, ready: list[Definition], request: pytest.FixtureRequest) -> None:
    if definition not in ready:
        pytest.skip(f"python -m sweep.toolchains install {definition.name}")
    cells = {(run.data.params["framework"], run.data.params["weights"]): run.data for run in request.getfixturevalue("sweep").cells("apart").values()}
    trained, same = (cells[framework_of(definition), weights] for weights in ("trained", "same"))
    pinned = dict(pin.lower().split("==") for pin in definition.pins)
    assert trained.params["framework_version"] == same.params["framework_version"] in pinned.values()
    assert trained.metrics["accuracy"] > 0.6
    # the same steps from the same numbers in two programs: of 500 answers a few differ
    assert trained.metrics["accuracy"] == pytest.approx(cells["pytorch", "trained"].metrics["accuracy"], abs=0.03)
    assert trained.tags["training"] == "agrees with pytorch to what one ulp does"
    assert trained.metrics["trace_loss_diff_rel_float64"] < 1e-8
    assert (same.tags["parity"], same.tags["proof"], same.tags["diagnosis"]) == ("equal", "holds", "no fault")
    assert same.metrics["logit_diff_max"] <= same.metrics["parity_tolerance"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("definition", [each for each in DEFINITIONS if each.frameworks], ids=lambda definition: definition.name)
def test_its_frameworks_keep_the_contract_in_their_own_interpreter(definition: Definition, ready: list[Definition]) -> None:
    pytest_in(definition, "test_frameworks.py")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks that the frameworks of the default toolchain have trained and exported."""
    folder = tmp_path_factory.mktemp("exported")
    command = [sys.executable, str(ROOT / "tests" / "contract" / "exported.py"), str(folder)]
    subprocess.run(command, check=True, env=os.environ | ENVIRONMENT)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("definition", [each for each in DEFINITIONS if each.runtimes], ids=lambda definition: definition.name)
def test_its_runtimes_keep_the_contract_in_their_own_interpreter(definition: Definition, ready: list[Definition], exported: Path) -> None:
    pytest_in(definition, "test_runtimes.py", SWEEP_EXPORTED=str(exported))


def pytest_in(definition: Definition, file: str, **variables: str) -> None:
    """Contract tests in the toolchain's Python; pytest lies beside the environment, not in it."""
    beside = cache_folder() / "toolchains" / f"pytest-{definition.python}"
    if not (beside / "pytest").exists():
        subprocess.run([str(definition.interpreter()), "-m", "pip", "install", "--quiet", "--target", str(beside), "pytest"], check=True)
    environment = toolchain.of(definition).environment()
    path = os.pathsep.join([environment["PYTHONPATH"], str(beside)])
    command = [definition.interpreter(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--noconftest", "--rootdir", ROOT]
    done = subprocess.run(
        [*map(str, command), str(ROOT / "tests" / "contract" / file)], capture_output=True, text=True, cwd=ROOT,
        env=os.environ | environment | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"} | variables,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of toolchains: one whose interpreter aborts, and one that was never installed since its Python is nowhere."""
    folder = tmp_path / "toolchains"
    folder.mkdir()
    monkeypatch.setenv("SWEEP_TOOLCHAINS", str(folder))
    for name, version in (("dies", "3.11"), ("absent", "3.99")):
        (folder / f"{name}.toml").write_text(FAKE_TOOLCHAIN.format(name=name, version=version))
        (folder / f"{name}.lock").write_text("numpy==0\n")
    return folder


def make(folder: Path, cache: Path, name: str, script: str) -> None:
    """An environment whose interpreter is this script."""
    (folder / f"{name}.toml").write_text(FAKE_TOOLCHAIN.format(name=name, version="3.11"))
    (folder / f"{name}.lock").write_text("numpy==0\n")
    code = f"from sweep import toolchain; print(toolchain.definitions()['{name}'].folder())"
    environment = os.environ | ENVIRONMENT | {"SWEEP_CACHE": str(cache)}
    made = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True).stdout.strip())
    (made / "bin").mkdir(parents=True, exist_ok=True)
    (made / "bin" / "python").write_text(f"#!/bin/sh\n{script}\n")
    (made / "bin" / "python").chmod(0o755)
    (made / RECORD).write_text("{}")


def test_a_broken_toolchain_costs_its_own_cells_until_it_is_mended(tmp_path: Path, broken: Path) -> None:
    cache = tmp_path / "cache"
    make(broken, cache, "dies", "kill -ABRT $$")
    store = Store(tmp_path / "store", cache)
    grid = {"framework": ["fake", "fake@dies", "fake@absent"], "dataset": ["synthetic"], "architecture": ["linear"], "seed": [0, 1]}
    config = store.write("mended", grid=grid)
    first = store.run(config)
    assert first.wait() == 0, first.output
    lines = [line for line in first.output.splitlines() if line.startswith("toolchain ")]
    assert sorted(lines) == [
        "toolchain absent is not installed: python -m sweep.toolchains install absent",
        "toolchain dies: a worker of toolchain dies exited with status -6",
    ]
    rows = {(run.data.params["framework"], run.data.params["seed"]): run.data.tags for run in store.cells("mended").values()}
    assert {name for name, tags in rows.items() if tags["status"] == "ok"} == {("fake", "0"), ("fake", "1")}
    assert {tags["reason"].partition(":")[0] for tags in rows.values() if tags["status"] == "skipped"} == {"env_unavailable"}
    done = store.finished()
    make(broken, cache, "dies", SOUND)
    second = store.run(config)
    assert second.wait() == 0, second.output
    rows = {(run.data.params["framework"], run.data.params["seed"]): run.data.tags for run in store.cells("mended").values()}
    assert {name for name, tags in rows.items() if tags["status"] == "skipped"} == {("fake@absent", "0"), ("fake@absent", "1")}
    assert all(count == 1 for count in store.finished().values()), "nothing was done twice"
    trained = [run.data for run in store.stages("train") if run.data.tags["key"] not in done]
    assert [data.params["toolchain"] for data in trained] == ["dies", "dies"]


@pytest.mark.slow
def test_a_toolchain_that_hangs_is_waited_for_once_and_not_for_ever(tmp_path: Path, broken: Path) -> None:
    cache = tmp_path / "cache"
    make(broken, cache, "dies", "sleep 3600")
    store = Store(tmp_path / "store", cache)
    command = store.run(store.write("hangs", grid={"framework": ["fake", "fake@dies"], "dataset": ["synthetic"], "architecture": ["linear"]}))
    assert command.wait() == 0, command.output
    assert command.output.count("toolchain dies: a worker of toolchain dies did not start within 60 s") == 1
    assert {run.data.params["framework"]: run.data.tags["status"] for run in store.cells("hangs").values()} == {"fake": "ok", "fake@dies": "skipped"}
