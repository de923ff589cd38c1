"""Stages as they are collected, and what the settings of every kind of them have in common. Pure."""

from collections.abc import Mapping
from typing import Any

from sweep import sources, toolchain
from sweep.axes import NATIVE
from sweep.facts import Component, Facts
from sweep.grid import Cell
from sweep.plan import Host, PreparedData, Stage, digest
from sweep.schema import Sweep
from sweep.settings import framework_options, serving_options


class Stages:
    """What needs the same work names the same stage, by the hash of all its inputs."""

    def __init__(self, sweep: Sweep, facts: Facts, data: Mapping[str, PreparedData], host: Host) -> None:
        self.sweep, self.facts, self.data, self.host = sweep, facts, data, host
        self.stages: dict[str, Stage] = {}

    def native(self) -> Component:
        """The runtime that opens frameworks' own formats."""
        return next(runtime for runtime in self.facts.runtimes.values() if not runtime.missing and NATIVE in runtime.facts["accepts"])

    def add(
        self, kind: str, settings: dict[str, Any], inputs: dict[str, str], label: str, modules: tuple[str, ...], gpu: bool = False
    ) -> str:
        settings["sources"] = sources.digest((f"sweep.stages.{kind}", f"sweep.work.{kind}", *modules))
        key = digest(kind, settings, inputs)
        self.stages.setdefault(key, Stage(kind, settings, inputs, key, label, gpu))
        return key

    def framework(self, component: Component, converts: bool = False) -> dict[str, Any]:
        return {"framework": toolchain.base(component.name), "options": framework_options(component, self.sweep)} | self.component(
            component, converts
        )

    def runtime(self, component: Component, variant: Mapping[str, Any], converts: bool = False) -> dict[str, Any]:
        return {"runtime": toolchain.base(component.name), "options": serving_options(component, self.sweep, variant)} | self.component(
            component, converts
        )

    def serving(self, cell: Cell, runtime: Component) -> dict[str, Any]:
        """A runtime as it serves a cell's model: a framework's own runs where the framework is."""
        settings = self.runtime(runtime, cell.settings("runtime"))
        if runtime is not self.native():
            return settings
        if cell.kind == "model":
            own = self.facts.formats[self.facts.models[cell.model].format]
            return settings | {"toolchain": own.toolchain, "lock": own.lock}
        return settings | {"toolchain": self.facts.frameworks[cell.framework].toolchain}

    def component(self, component: Component, converts: bool) -> dict[str, Any]:
        found = {
            "module": component.module,
            "toolchain": component.toolchain,
            "version": component.version,
            "lock": component.convert_lock if converts else component.lock,
        }
        return found if converts else found | {"threads": self.sweep.threads}

    def dataset(self, cell: Cell) -> dict[str, Any]:
        data = self.data[cell.dataset]
        return {"dataset": data.name, "dataset_digest": data.digest, "splits": data.splits}

    def modules(self, cell: Cell, runtime: Component, *further: str) -> tuple[str, ...]:
        """The modules that open a model on the cell's device; a framework's own where it serves itself."""
        own: tuple[str, ...] = ()
        if runtime is self.native():
            named = cell.kind == "model"
            own = (f"sweep.formats.{self.facts.models[cell.model].format}" if named else source_of(self.facts.frameworks[cell.framework]),)
        return (f"sweep.devices.{cell.device}", f"sweep.runtimes.{runtime.module}", *own, *further)


def source_of(component: Component) -> str:
    return f"sweep.{component.kind}.{component.module}"


def served_how(cell: Cell) -> str:
    """How the cell's model is served, where that is not as usual."""
    settings = cell.settings("runtime")
    return f", {', '.join(f'{name}={value}' for name, value in settings.items())}" if settings else ""
