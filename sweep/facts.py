"""What every component states of itself, asked of each toolchain. The default one's answer is kept until what is installed or a component's
source changes; another is asked at every start, since that it worked before does not say that it does now."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweep import attacks, corruptions, own_model, sources, toolchain
from sweep.axes import NATIVE
from sweep.errors import ConfigError, StageFailed, nearest
from sweep.own_model import OwnModel
from sweep.toolchain import DEFAULT, KINDS, Offer, Toolchain
from sweep.workers import Limits, Pool, Shape

ASK_LIMITS = Limits(seconds=90.0, memory_bytes=16 << 30)

Described = dict[str, dict[str, Any]]
Modules = dict[str, list[str]]


@dataclass(frozen=True)
class Component:
    """A framework or runtime as one toolchain has it; `missing` says why it can't be used, "" where it can."""

    kind: str  # `frameworks`, `runtimes` or `formats`
    name: str  # the value on the grid's axis, with its version where one is said
    module: str
    toolchain: str
    facts: Mapping[str, Any]
    version: str
    lock: str  # digest of the packages that it runs with
    convert_lock: str  # and of those that it exports or converts with
    missing: str = ""


@dataclass(frozen=True)
class Facts:
    """Frameworks and runtimes by the values of their axes: those of the default toolchain, and those that were asked for."""

    frameworks: Mapping[str, Component]
    runtimes: Mapping[str, Component]
    attacks: Component  # the library that all attacks come from
    corruptions: Mapping[str, str] = field(default_factory=dict)  # versions of the packages that corrupt images
    exporters: Mapping[tuple[str, str], Component] = field(default_factory=dict)  # by module and format, in other toolchains than its own
    formats: Mapping[str, Component] = field(default_factory=dict)  # of users' own models, where a sweep has some
    models: Mapping[str, OwnModel] = field(default_factory=dict)  # by the value of the axis

    def exporter(self, framework: Component, target: str) -> Component | None:
        """What writes a framework's models in a format: the framework itself, or its module in another toolchain."""
        if target in framework.facts["exports"]:
            return framework
        found = self.exporters.get((framework.module, target))
        return replace(found, name=framework.name) if found and not found.missing else None

    def not_exported(self, framework: Component, target: str) -> list[str]:
        """Why a format that a toolchain offers for a framework is not to be had."""
        found = self.exporters.get((framework.module, target))
        return [found.missing] if found and found.missing else []

    def broken_toolchains(self) -> list[str]:
        """One line for each toolchain but the default one that was asked and can't be used."""
        asked = [*self.frameworks.values(), *self.runtimes.values()]  # not the exporters: there may be another way
        return list(dict.fromkeys(component.missing for component in asked if component.missing and component.toolchain != DEFAULT))


def gather(cache: Path, wanted: Mapping[str, Iterable[str]]) -> Facts:
    """The facts of the default toolchain's components and of the wanted ones, by kind (`frameworks`, `runtimes`, `models`).

    A toolchain that is not there, or dies or hangs on import, makes its components missing, with the reason. Raises ConfigError for a
    version that the default toolchain does not have.
    """
    offered = {kind: _offers(kind, wanted.get(kind, ())) for kind in KINDS}
    exporting = _exporting({offer.module for offer in offered["frameworks"].values()}) if set(wanted.get("runtimes", ())) - {NATIVE} else {}
    models = {path: own_model.recognise(path) for path in sorted(wanted.get("models", ()))}
    asked: dict[str, Modules] = {DEFAULT: {"formats": sorted(set(models.values()))} if models else {}}
    for kind, offers in [*((kind, list(offers.values())) for kind, offers in offered.items()), ("frameworks", list(exporting.values()))]:
        for offer in offers:
            modules = asked.setdefault(offer.toolchain, {}).setdefault(kind, [])
            if offer.module not in modules:
                modules.append(offer.module)
    with ThreadPoolExecutor(len(asked)) as threads:
        answers = {name: threads.submit(_described, cache, name, modules) for name, modules in asked.items()}
        described = {name: answer.result() for name, answer in answers.items()}
    kinds = {
        kind: {value: _component(kind, value, offer, described[offer.toolchain][kind][offer.module]) for value, offer in offers.items()}
        for kind, offers in offered.items()
    }
    library = Offer(DEFAULT, attacks.DISTRIBUTION)
    facts = Facts(
        **kinds,
        attacks=_component("attacks", library.module, library, described[DEFAULT]["packages"][library.module]),
        corruptions={name: described[DEFAULT]["packages"][name].get("version", "") for name in corruptions.DISTRIBUTIONS},
        formats={
            name: _component("formats", name, Offer(DEFAULT, name), entry) for name, entry in described[DEFAULT].get("formats", {}).items()
        },
        models=own_model.examined(models) if models else {},
        exporters={(offer.module, target): _exporter(offer, target, described) for (_module, target), offer in exporting.items()},
    )
    _check_versions(offered, facts)
    return facts


def _offers(kind: str, wanted: Iterable[str]) -> dict[str, Offer]:
    known = toolchain.offers(kind)
    found = {value: offer for value, offer in known.items() if offer.toolchain == DEFAULT}
    for value in wanted:
        offer = toolchain.offer(kind, value)
        assert offer is not None, f"{value} went through the check of the sweep file"
        found[value] = offer
    return found


def _exporting(modules: Iterable[str]) -> dict[tuple[str, str], Offer]:
    """Where else than in their own toolchains these frameworks' models are exported, by module and format."""
    return {
        (module, target): Offer(definition.name, module)
        for definition in toolchain.definitions().values()
        for module, targets in definition.exports.items() if module in modules
        for target in targets
    }


def _exporter(offer: Offer, target: str, described: Mapping[str, Described]) -> Component:
    found = _component("frameworks", offer.module, offer, described[offer.toolchain]["frameworks"][offer.module])
    if not found.missing and target not in found.facts["exports"]:
        return replace(found, missing=f"toolchain {offer.toolchain}: {offer.module} exports no {target} there")
    return found


def _check_versions(offered: Mapping[str, Mapping[str, Offer]], facts: Facts) -> None:
    for kind, offers in offered.items():
        for value, offer in offers.items():
            component = getattr(facts, kind)[value]
            if offer.version and not component.missing and not toolchain.is_version(component.version, offer.version):
                name = toolchain.base(value)
                versions = [f"{name}@{component.version}", *(known for known in toolchain.offers(kind) if known.startswith(f"{name}@"))]
                raise ConfigError(f"grid.{kind[:-1]}: there is no {value!r} here{nearest(value, versions)}")


def _described(cache: Path, name: str, modules: Modules) -> Described:
    """What a toolchain says of these modules, or why it says nothing."""
    packages = [attacks.DISTRIBUTION, *corruptions.DISTRIBUTIONS] if name == DEFAULT else []
    try:
        chosen = toolchain.named(name)
        paths = tuple(f"sweep.{kind}.{module}" for kind, names in modules.items() for module in names)
        state = json.dumps([chosen.lock, sources.digest(("sweep.worker.describe", *paths)), modules, packages])
        kept = cache / "facts" / f"{hashlib.sha256(state.encode()).hexdigest()[:24]}.json"
        if name == DEFAULT and kept.is_file():
            found: Described = json.loads(kept.read_text())
            return found
        found = _ask(chosen, modules, packages)
    except StageFailed as failure:
        reason = failure.message if failure.message.startswith("toolchain") else f"toolchain {name}: {failure.message}"
        nothing: Described = {kind: {module: {"missing": reason} for module in names} for kind, names in modules.items()}
        return nothing | {"packages": {package: {"missing": reason} for package in packages}}
    if name == DEFAULT and not any("missing" in entry for entries in found.values() for entry in entries.values()):
        _keep(kept, found)
    return found


def _ask(chosen: Toolchain, modules: Modules, packages: list[str]) -> Described:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        pool = Pool(keep=0, recycle_bytes=0)
        try:
            with pool.fresh(Shape(chosen), log) as worker:
                described, _arrays = worker.call("sweep.worker.describe:run", {"modules": modules, "packages": packages}, ASK_LIMITS, log)
        finally:
            pool.close()
    return dict(described)


def _component(kind: str, value: str, offer: Offer, entry: Mapping[str, Any]) -> Component:
    if "missing" in entry:
        return Component(kind, value, offer.module, offer.toolchain, {}, "", "", "", entry["missing"])
    return Component(kind, value, offer.module, offer.toolchain, entry["facts"], entry["version"], entry["lock"], entry["convert_lock"])


def _keep(path: Path, described: Described) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(described, file)
    os.replace(file.name, path)
