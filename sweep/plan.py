"""From cells to the graph of distinct stages. Pure: cells that need the same work name the same stage, by the hash of all its inputs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sweep import attacks, components, sources, toolchain
from sweep.config import FLOAT64, NO_ATTACK, NO_CONTROL, ONE_ULP, Sweep, nearest
from sweep.contracts import Layers
from sweep.errors import ConfigError
from sweep.facts import Component, Facts
from sweep.grid import (
    NATIVE,
    TRANSPLANT,
    UNAVAILABLE,
    Cell,
    DatasetFacts,
    Route,
    expand,
    layers_of,
    route,
    trainable,
    unsupported,
    way_round,
)

WHITE_BOX = "white-box"
TRANSFER = "transfer:same-weights"
VERSIONS = ("framework_version", "runtime_version")
DRAWS = 3
TRACED = [
    (NO_CONTROL, NO_CONTROL, 0), *((f"{ONE_ULP}_{draw}", ONE_ULP, draw) for draw in range(DRAWS)), (FLOAT64, FLOAT64, 0),
]
"""What a comparison of steps reads of each side: name, control and draw. One draw of ulps would show too little: whether it happens to turn
the largest of a pooling window into the second largest is a matter of luck, and from there on losses differ a thousand times more."""


class Host(NamedTuple):
    """Where measurements are taken, and what trains: part of the keys of the stages whose results depend on it."""

    name: str
    cpu: str
    processor: str  # `cpu` or `gpu`


@dataclass(frozen=True)
class PreparedData:
    """A data set as the plan sees it: what it is and which of its examples are for what, by digest."""

    name: str
    digest: str
    splits: str
    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None  # of texts


@dataclass(frozen=True)
class Stage:
    """One unit of work. `settings` and the keys in `inputs` are everything that its result depends on; the key is their hash."""

    kind: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    key: str
    label: str
    gpu: bool = False


@dataclass(frozen=True)
class PlannedCell:
    """A cell with the stages it is made of, by role, or with the reason why it can't run."""

    cell: Cell
    key: str
    reason: str | None = None
    stages: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    access: str | None = None
    replaces: str = ""  # key of the row that says the same cell's framework or runtime was not to be had


@dataclass(frozen=True)
class Plan:
    """Cells in the order of the grid, stages by key with every input before what reads it."""

    cells: Sequence[PlannedCell]
    stages: Mapping[str, Stage]

    def upstream(self, key: str) -> list[str]:
        """All stages that a stage rests on, itself included, inputs first."""
        found: dict[str, None] = {}
        for above in self.stages[key].inputs.values():
            found.update(dict.fromkeys(self.upstream(above)))
        found[key] = None
        return list(found)


def make(sweep: Sweep, facts: Facts, data: Mapping[str, PreparedData], host: Host) -> Plan:
    """The plan of a sweep. Raises ConfigError for settings that can't be meant."""
    _check_options(sweep, facts)
    _check_trace(sweep, facts)
    builder = _Builder(sweep, facts, data, host)
    cells = [builder.cell(cell) for cell in expand(sweep)]
    if not cells:
        raise ConfigError("exclude: every cell of the grid is excluded")
    return Plan(cells, builder.stages)


def _check_options(sweep: Sweep, facts: Facts) -> None:
    """Options that a component doesn't have would be a failure of each of its stages, or worse, be overlooked."""
    for name, given in sweep.options.items():
        named = [kind[name] for kind in (facts.frameworks, facts.runtimes) if name in kind and not kind[name].missing]
        known = {option for component in named for option in component.facts["options"]}
        for option in given if named else ():
            if option not in known:
                hint = nearest(option, sorted(known)) if known else "; it has no options"
                raise ConfigError(f"options.{name}: there is no {option!r}{hint}")


def _check_trace(sweep: Sweep, facts: Facts) -> None:
    if sweep.trace.steps and (against := facts.frameworks[sweep.trace.against or ""]).missing:
        raise ConfigError(f"trace.against: {against.name} can't be used here ({against.missing})")


def digest(*parts: Any) -> str:
    """A short hash of JSON-able parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:20]


def _source_of(component: Component) -> str:
    return f"sweep.{component.kind}.{component.module}"


def _starts_equal(cell: Cell) -> bool:
    return (cell.recipe, cell.weights, cell.control) == ("identical", "trained", NO_CONTROL)


def _but(control: str) -> str:
    return "" if control == NO_CONTROL else f", {control}"


class _Builder:
    """Collects stages while cells are translated; each method returns the key of the stage it names."""

    def __init__(self, sweep: Sweep, facts: Facts, data: Mapping[str, PreparedData], host: Host) -> None:
        self.sweep, self.facts, self.data, self.host = sweep, facts, data, host
        self.stages: dict[str, Stage] = {}
        self._layers: dict[tuple[str, str], Layers | ValueError] = {}

    def cell(self, cell: Cell) -> PlannedCell:
        layers = self._layers_of(cell)
        reason = unsupported(cell, self.sweep, self.facts, layers)
        attack = self._attack_settings(cell)
        params = self._params(cell, attack)
        # What is not to be had has no version, and its row gives way to that of any version that comes.
        versionless = digest({name: value for name, value in params.items() if name not in VERSIONS})
        if reason is not None:
            unavailable = reason.startswith(UNAVAILABLE)
            return PlannedCell(cell, versionless if unavailable else digest(params), reason, {}, params)
        assert not isinstance(layers, ValueError)
        return replace(self._runnable(cell, layers, attack, params), replaces=versionless)

    def _params(self, cell: Cell, attack: Mapping[str, Any]) -> dict[str, Any]:
        """What tells a row of the table from any other: the axes, the versions, and every setting that its figures are of."""
        training = self.sweep.training(cell.dataset, cell.architecture).model_dump()
        params = cell.axes() | {
            "framework_version": self.facts.frameworks[cell.framework].version,
            "runtime_version": self.facts.runtimes[cell.runtime].version or self.facts.frameworks[cell.framework].version,
            "dataset_digest": self.data[cell.dataset].digest[:12],
            "threads": self.sweep.threads,
            "eval_examples": self._test_examples(cell) or "all",
        }
        training.pop("test_examples")  # is eval_examples
        if label := training.pop("label"):
            params["label"] = label
        params |= {f"train_{name}": "all" if value is None and name == "examples" else value for name, value in training.items()}
        if cell.weights == "same":
            params["weights_from"] = self.sweep.same_weights_from
        if cell.attack != NO_ATTACK:
            params |= {"attack_examples": self.sweep.attack.examples} | {f"attack_{name}": value for name, value in attack.items()}
        return params

    def _runnable(self, cell: Cell, layers: Layers, attack: Mapping[str, Any], params: dict[str, Any]) -> PlannedCell:
        runtime = self.facts.runtimes[cell.runtime]
        way = self._route(cell, runtime, layers)
        assert way is not None, "a cell without a route is a skip"
        stages = {"source": self._source(cell, layers)}
        stages["source_evaluation"] = self._source_evaluation(cell, stages["source"])
        transplanted = self.stages[stages["source"]].kind == "transplant"
        if self.sweep.diagnose.when == "always" or (transplanted and self.sweep.diagnose.when == "parity_fails"):
            stages["diagnosis"] = self._diagnose(cell, stages["source"], stages["source_evaluation"])
        if self.sweep.trace.steps and _starts_equal(cell) and self._can_be_held_against(cell, layers):
            stages["trace"] = self._compare_traces(cell, layers)
        stages["model"] = self._deployed(cell, stages["source"], runtime, cell.quantization, way)
        stages["evaluation"] = self._evaluate(cell, stages["model"], runtime, stages["source_evaluation"])
        if self.sweep.measure.enabled and components.load("devices", cell.device).FACTS["latency"]:
            stages["measurement"] = self._measure(cell, stages["model"], stages["source"], runtime, layers)
        access = None
        if cell.attack != NO_ATTACK:
            access = WHITE_BOX if stages["model"] == stages["source"] else TRANSFER
            crafted = self._craft(cell, stages["source"], attack)
            stages["attack"] = crafted if access == WHITE_BOX else self._transfer(cell, stages["model"], crafted, runtime)
        return PlannedCell(cell, digest(params), None, stages, params | {"route": way.name}, access)

    def _source(self, cell: Cell, layers: Layers) -> str:
        """The cell's framework with trained weights, its own or the master's."""
        if cell.weights == "trained":
            return self._train(cell, cell.framework, layers, cell.control)
        master = self.sweep.same_weights_from
        assert master is not None
        trained = self._train(cell, master, layers, NO_CONTROL)
        if master == cell.framework and cell.control == NO_CONTROL:
            return trained
        return self._transplant(self._master(cell), trained, cell.framework, cell.control)

    def _train(self, cell: Cell, framework: str, layers: Layers, control: str) -> str:
        return self._training("train", cell, framework, layers, control, {})

    def _training(self, kind: str, cell: Cell, framework: str, layers: Layers, control: str, further: Mapping[str, Any]) -> str:
        component, data = self.facts.frameworks[framework], self.data[cell.dataset]
        training = self.sweep.training(cell.dataset, cell.architecture)
        plan = training.model_dump(exclude={"examples", "test_examples", "label"}) | {"recipe": cell.recipe, "seed": cell.seed}
        processor = self.host.processor if self.host.processor in component.facts["processors"] else "cpu"
        settings = self._framework(component) | {
            "architecture": cell.architecture,
            "layers": layers,
            "classes": data.classes,
            "plan": plan,
            "examples": training.examples,
            "test_examples": training.test_examples,
            "control": control,
            "processor": processor,
            **self._dataset(cell),
            **further,
        }
        label = f"{framework} {cell.architecture} {cell.dataset} {cell.recipe} seed {cell.seed}{_but(control)}"
        return self._add(kind, settings, {}, label, (_source_of(component),), gpu=processor == "gpu")

    def _transplant(self, owner: Cell, source: str, framework: str, control: str = NO_CONTROL) -> str:
        """A model rebuilt in another framework, proved on the inputs that its owner was evaluated on."""
        component = self.facts.frameworks[framework]
        settings = self._framework(component, converts=True) | self._dataset(owner) | {"seed": owner.seed, "control": control}
        label = f"{self.stages[source].label} to {framework}{_but(control)}"
        inputs = {"model": source, "evaluation": self._source_evaluation(owner, source)}
        return self._add("transplant", settings, inputs, label, (_source_of(component),))

    def _source_evaluation(self, cell: Cell, source: str) -> str:
        """The framework's own model, beside the exact logits of its weights: those of the model that it took them from, where it did."""
        stage = self.stages[source]
        same = stage.kind == "transplant" and stage.settings["control"] != ONE_ULP
        return self._evaluate(cell, source, self._native(), stage.inputs.get("evaluation"), "source" if same else "computed")

    def _master(self, cell: Cell) -> Cell:
        assert self.sweep.same_weights_from is not None
        return replace(cell, framework=self.sweep.same_weights_from)

    def _diagnose(self, cell: Cell, model: str, evaluation: str) -> str:
        """Where a network parts from what its weights say: those that it took over, or its own."""
        component = self.facts.frameworks[cell.framework]
        settings = self._framework(component) | self._dataset(cell) | {
            "examples": self.sweep.diagnose.examples, "when": self.sweep.diagnose.when, "seed": cell.seed,
        }
        inputs = {"model": model, "source": self.stages[model].inputs.get("model", model), "evaluation": evaluation}
        return self._add("diagnose", settings, inputs, self.stages[model].label, (_source_of(component),))

    def _can_be_held_against(self, cell: Cell, layers: Layers) -> bool:
        against = self.sweep.trace.against
        return against is not None and against != cell.framework and not trainable(cell, self.sweep, self.facts.frameworks[against], layers)

    def _compare_traces(self, cell: Cell, layers: Layers) -> str:
        """Equal steps from equal weights, here and in the framework that all are held against, each with its controls."""
        assert self.sweep.trace.against is not None
        inputs = {}
        for side, framework in (("own", cell.framework), ("against", self.sweep.trace.against)):
            for name, control, draw in TRACED if self.facts.frameworks[framework].facts["float64"] else TRACED[:-1]:
                further = {"steps": self.sweep.trace.steps, "draw": draw}
                inputs[f"{side}_{name}"] = self._training("trace", cell, framework, layers, control, further)
        settings = {"toolchain": toolchain.DEFAULT, "seed": cell.seed, "against": self.sweep.trace.against}
        return self._add("compare", settings, inputs, f"{self.stages[inputs['own_none']].label} and {self.sweep.trace.against}", ())

    def _deployed(self, cell: Cell, source: str, runtime: Component, quantization: str, way: Route) -> str:
        """The model that the runtime opens. A framework's own format needs no conversion."""
        if way.target == NATIVE:
            return source
        if way.name.startswith(TRANSPLANT):
            source = self._transplant(cell, source, way.exporter)
        exporter = self.facts.frameworks[way.exporter]
        settings = self._framework(exporter, converts=True) | {"step": "export", "format": way.target, "seed": cell.seed}
        label = f"{self.stages[source].label} to {way.target}"
        exported = self._add("convert", settings, {"model": source}, label, (_source_of(exporter),))
        settings = self._runtime(runtime, converts=True) | {"step": "deploy", "quantization": quantization, "seed": cell.seed}
        if quantization in runtime.facts["calibrated"]:
            settings |= self._dataset(cell)
        label = f"{self.stages[source].label} to {runtime.name} {quantization}"
        return self._add("convert", settings, {"model": exported}, label, (_source_of(runtime),))

    def _evaluate(self, cell: Cell, model: str, runtime: Component, source: str | None, exact: str = "") -> str:
        """A source's own evaluation is one stage, whatever is compared with it."""
        if source is not None and model == self.stages[source].inputs["model"]:
            return source
        settings = self._serving(cell, runtime) | self._dataset(cell) | {
            "device": cell.device,
            "examples": self._test_examples(cell),
            "exact": exact,
            "reference_examples": self.sweep.evaluate.reference_examples if exact == "computed" else 0,
            "float32": bool(exact) or cell.quantization == "float32",
            "seed": cell.seed,
        }
        inputs = {"model": model} | ({"source": source} if source is not None else {})
        label = f"{self.stages[model].label} on {cell.device}"
        return self._add("evaluate", settings, inputs, label, self._modules(cell, runtime))

    def _measure(self, cell: Cell, model: str, source: str, runtime: Component, layers: Layers) -> str:
        reference = self.facts.runtimes[self.sweep.measure.reference]
        way = None if reference.missing else self._route(cell, reference, layers)
        settings = self._serving(cell, runtime) | self._dataset(cell) | {
            "device": cell.device,
            "host": self.host.name,
            "cpu": self.host.cpu,
            "reference": self._serving(cell, reference) if way else None,
            "processes": self.sweep.measure.processes,
            "blocks": self.sweep.measure.blocks,
            "throughput_batch": self.sweep.measure.throughput_batch,
            "seed": cell.seed,
        }
        inputs = {"model": model}
        if way is not None:
            inputs["reference"] = self._deployed(cell, source, reference, "float32", way)
        label = f"{self.stages[model].label} on {cell.device}"
        return self._add("measure", settings, inputs, label, self._modules(cell, runtime, _source_of(reference)))

    def _craft(self, cell: Cell, source: str, attack: Mapping[str, Any]) -> str:
        settings = self._framework(self.facts.frameworks[cell.framework]) | self._dataset(cell) | {
            "attack": cell.attack,
            "attack_settings": dict(attack),
            "attacker": {"version": self.facts.attacks.version, "lock": self.facts.attacks.lock},
            "access": WHITE_BOX,
            "examples": self.sweep.attack.examples,
            "seed": cell.seed,
        }
        label = f"{self.stages[source].label} {cell.attack}"
        return self._add("attack", settings, {"model": source}, label, (_source_of(self.facts.frameworks[cell.framework]),))

    def _transfer(self, cell: Cell, model: str, crafted: str, runtime: Component) -> str:
        settings = self._serving(cell, runtime) | self._dataset(cell) | {"access": TRANSFER, "device": cell.device, "seed": cell.seed}
        label = f"{self.stages[model].label} {cell.attack} carried over"
        inputs = {"model": model, "attack": crafted}
        return self._add("attack", settings, inputs, label, self._modules(cell, runtime))

    def _add(
        self, kind: str, settings: dict[str, Any], inputs: dict[str, str], label: str, modules: tuple[str, ...], gpu: bool = False
    ) -> str:
        settings["sources"] = sources.digest((f"sweep.stages.{kind}", f"sweep.work.{kind}", *modules))
        key = digest(kind, settings, inputs)
        self.stages.setdefault(key, Stage(kind, settings, inputs, key, label, gpu))
        return key

    def _framework(self, component: Component, converts: bool = False) -> dict[str, Any]:
        return {"framework": toolchain.base(component.name)} | self._component(component, converts)

    def _runtime(self, component: Component, converts: bool = False) -> dict[str, Any]:
        return {"runtime": toolchain.base(component.name)} | self._component(component, converts)

    def _serving(self, cell: Cell, runtime: Component) -> dict[str, Any]:
        """A runtime as it serves a cell's model: a framework's own runs where the framework is."""
        settings = self._runtime(runtime)
        return settings | {"toolchain": self.facts.frameworks[cell.framework].toolchain} if runtime is self._native() else settings

    def _component(self, component: Component, converts: bool) -> dict[str, Any]:
        found = {
            "module": component.module,
            "toolchain": component.toolchain,
            "version": component.version,
            "lock": component.convert_lock if converts else component.lock,
            "options": self.sweep.options.get(component.name, self.sweep.options.get(toolchain.base(component.name), {})),
        }
        return found if converts else found | {"threads": self.sweep.threads}

    def _test_examples(self, cell: Cell) -> int | None:
        return self.sweep.training(cell.dataset, cell.architecture).test_examples or self.sweep.evaluate.examples

    def _dataset(self, cell: Cell) -> dict[str, Any]:
        data = self.data[cell.dataset]
        return {"dataset": data.name, "dataset_digest": data.digest, "splits": data.splits}

    def _modules(self, cell: Cell, runtime: Component, *further: str) -> tuple[str, ...]:
        """The modules that open a model on the cell's device; a framework's own where it serves itself."""
        own = (_source_of(self.facts.frameworks[cell.framework]),) if runtime is self._native() else ()
        return (f"sweep.devices.{cell.device}", f"sweep.runtimes.{runtime.module}", *own, *further)

    def _native(self) -> Component:
        """The runtime that opens frameworks' own formats."""
        return next(runtime for runtime in self.facts.runtimes.values() if not runtime.missing and NATIVE in runtime.facts["accepts"])

    def _route(self, cell: Cell, runtime: Component, layers: Layers) -> Route | None:
        return route(self.facts.frameworks[cell.framework], runtime, layers, way_round(self.sweep, self.facts))

    def _attack_settings(self, cell: Cell) -> dict[str, Any]:
        if cell.attack == NO_ATTACK:
            return {}
        try:
            return attacks.resolve(cell.attack, cell.dataset, self.sweep.settings.attack.get(cell.attack, {}))
        except ValueError as error:
            raise ConfigError(f"settings.attack: {error}") from None

    def _layers_of(self, cell: Cell) -> Layers | ValueError:
        at = (cell.architecture, cell.dataset)
        if at not in self._layers:
            data = self.data[cell.dataset]
            try:
                self._layers[at] = layers_of(cell.architecture, DatasetFacts(data.shape, data.classes, data.vocabulary))
            except ValueError as error:
                self._layers[at] = error
        return self._layers[at]
