"""What every component states of itself, asked of each toolchain once and kept until the toolchain or a component's source changes."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep import attacks, components, sources, toolchains
from sweep.errors import StageFailed
from sweep.workers import Limits, Pool, Shape

KINDS = ("frameworks", "runtimes")
ASK_LIMITS = Limits(seconds=180.0, memory_bytes=16 << 30)


@dataclass(frozen=True)
class Component:
    """A framework or runtime as one toolchain has it; `missing` says why it can't be used, "" where it can."""

    name: str
    facts: Mapping[str, Any]
    version: str
    lock: str  # digest of the packages that it runs with
    convert_lock: str  # and of those that it exports or converts with
    missing: str = ""


@dataclass(frozen=True)
class Facts:
    """Every framework and runtime by name."""

    frameworks: Mapping[str, Component]
    runtimes: Mapping[str, Component]
    attacks: Component  # the library that all attacks come from


def gather(cache: Path) -> Facts:
    """The facts of the default toolchain. A toolchain that dies or hangs on import makes its components missing, with the reason."""
    toolchain = toolchains.default()
    modules = tuple(f"sweep.{kind}.{name}" for kind in KINDS for name in components.names(kind))
    key = hashlib.sha256(f"{toolchain.lock}{sources.digest(('sweep.worker.describe', *modules))}".encode()).hexdigest()[:24]
    kept = cache / "facts" / f"{key}.json"
    if kept.is_file():
        return _facts(json.loads(kept.read_text()))
    described = _ask(toolchain)
    facts = _facts(described)
    if not any(component.missing for kind in (facts.frameworks, facts.runtimes) for component in kind.values()):
        _keep(kept, described)
    return facts


def _ask(toolchain: toolchains.Toolchain) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        pool = Pool(keep=0, recycle_bytes=0)
        try:
            with pool.fresh(Shape(toolchain), log) as worker:
                asked = {"kinds": KINDS, "packages": [attacks.DISTRIBUTION]}
                described, _arrays = worker.call("sweep.worker.describe:run", asked, ASK_LIMITS, log)
        except StageFailed as failure:
            reason = f"toolchain {toolchain.name}: {failure.message}"
            missing = {"missing": reason}
            nothing = {kind: dict.fromkeys(components.names(kind), missing) for kind in KINDS}
            return nothing | {"packages": {attacks.DISTRIBUTION: missing}}
        finally:
            pool.close()
    return described


def _facts(described: Mapping[str, Mapping[str, Any]]) -> Facts:
    kinds = {kind: {name: _component(name, entry) for name, entry in described[kind].items()} for kind in KINDS}
    return Facts(**kinds, attacks=_component(attacks.DISTRIBUTION, described["packages"][attacks.DISTRIBUTION]))


def _component(name: str, entry: Mapping[str, Any]) -> Component:
    if "missing" in entry:
        return Component(name, {}, "", "", "", entry["missing"])
    return Component(name, entry["facts"], entry["version"], entry["lock"], entry["convert_lock"])


def _keep(path: Path, described: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(described, file)
    os.replace(file.name, path)
