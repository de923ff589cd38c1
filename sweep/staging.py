"""The stages that cells are made of. Pure: what needs the same work names the same stage, by the hash of all its inputs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sweep import attacks, corruptions, quantization, simulation, sources, toolchain
from sweep.axes import FLOAT32, FLOAT64, NATIVE, NO_CONTROL, NO_CORRUPTION, ONE_ULP
from sweep.contracts import Layers
from sweep.facts import Component, Facts
from sweep.grid import Cell
from sweep.plan import Host, PreparedData, Stage, digest
from sweep.schema import Sweep
from sweep.settings import conversion_options, framework_options, serving_options
from sweep.support import TRANSPLANT, Route, own_route, route, way_round
from sweep.work import CORRUPTED

OWN_REFERENCE_EXAMPLES = 16
DRAWS = 3
TRACED = [
    (NO_CONTROL, NO_CONTROL, 0), *((f"{ONE_ULP}_{draw}", ONE_ULP, draw) for draw in range(DRAWS)), (FLOAT64, FLOAT64, 0),
]
"""What a comparison of steps reads of each side: name, control and draw. One draw of ulps would show too little: whether it happens to turn
the largest of a pooling window into the second largest is a matter of luck, and from there on losses differ a thousand times more."""


class Staging:
    """Collects stages while cells are translated; each method returns the key of the stage that it names."""

    def __init__(self, sweep: Sweep, facts: Facts, data: Mapping[str, PreparedData], host: Host) -> None:
        self.sweep, self.facts, self.data, self.host = sweep, facts, data, host
        self.stages: dict[str, Stage] = {}

    def source(self, cell: Cell, layers: Layers) -> str:
        """The cell's framework with trained weights, its own or the master's."""
        if cell.weights == "trained":
            return self._training("train", cell, cell.framework, layers, cell.control, {})
        master = self.sweep.same_weights_from
        assert master is not None
        trained = self._training("train", cell, master, layers, NO_CONTROL, {})
        if master == cell.framework and cell.control == NO_CONTROL:
            return trained
        return self._transplant(replace(cell, framework=master), trained, cell.framework, cell.control)

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
        inputs = {"model": source, "evaluation": self.source_evaluation(replace(owner, corruption=NO_CORRUPTION), source)}
        return self._add("transplant", settings, inputs, label, (_source_of(component),))

    def source_evaluation(self, cell: Cell, source: str) -> str:
        """The framework's own model, beside the exact logits of its weights: those of the model that it took them from, where it did."""
        stage = self.stages[source]
        same = stage.kind == "transplant" and stage.settings["control"] != ONE_ULP
        plain = replace(cell, runtime=self.native().name, quantization=FLOAT32)
        first = stage.inputs.get("evaluation")
        if first is not None and cell.corruption != NO_CORRUPTION:
            assert self.sweep.same_weights_from is not None
            first = self.source_evaluation(replace(plain, framework=self.sweep.same_weights_from), stage.inputs["model"])
        return self.evaluate(plain, source, self.native(), first, "source" if same else "computed")

    def diagnose(self, cell: Cell, model: str, evaluation: str) -> str:
        """Where a network parts from what its weights say: those that it took over, or its own."""
        component = self.facts.frameworks[cell.framework]
        settings = self._framework(component) | self._dataset(cell) | {
            "examples": self.sweep.diagnose.examples, "when": self.sweep.diagnose.when, "seed": cell.seed,
        }
        inputs = {"model": model, "source": self.stages[model].inputs.get("model", model), "evaluation": evaluation}
        inputs |= self._corrupted(cell)
        return self._add("diagnose", settings, inputs, self.stages[model].label, (_source_of(component),))

    def diagnose_deployed(self, cell: Cell, model: str, source: str, evaluation: str, runtime: Component) -> str:
        """Where a converted model parts from its source; only looked into where it does, unless the sweep says always."""
        row, options = conversion_options(runtime, cell.quantization)
        settings = self._serving(cell, runtime) | self._dataset(cell) | {
            "quantization": row, "quantization_options": options, "examples": self.sweep.diagnose.examples,
            "when": self.sweep.diagnose.when, "seed": cell.seed,
        }
        if cell.kind == "model":
            settings["source_runtime"] = self._serving(replace(cell, runtime=self.native().name), self.native())
        inputs = {"model": model, "source": source, "evaluation": evaluation} | self._corrupted(cell)
        label = f"{self.stages[model].label}{_with(cell)}"
        return self._add("diagnose", settings, inputs, label, (_source_of(runtime), *self._modules(cell, self.native())))

    def compare_traces(self, cell: Cell, layers: Layers) -> str:
        """Equal steps from equal weights, here and in the framework that all are held against, each with its controls."""
        assert self.sweep.trace.against is not None
        inputs = {}
        for side, framework in (("own", cell.framework), ("against", self.sweep.trace.against)):
            for name, control, draw in TRACED if self.facts.frameworks[framework].facts["float64"] else TRACED[:-1]:
                further = {"steps": self.sweep.trace.steps, "draw": draw}
                inputs[f"{side}_{name}"] = self._training("trace", cell, framework, layers, control, further)
        settings = {"toolchain": toolchain.DEFAULT, "seed": cell.seed, "against": self.sweep.trace.against}
        return self._add("compare", settings, inputs, f"{self.stages[inputs['own_none']].label} and {self.sweep.trace.against}", ())

    def deployed(self, cell: Cell, source: str, runtime: Component, quantization: str, way: Route) -> str:
        """The model that the runtime opens. A framework's own format needs no conversion."""
        if way.target == NATIVE:
            return source
        if way.name.startswith(TRANSPLANT):
            source = self._transplant(cell, source, way.exporter.name)
        settings = self._framework(way.exporter, converts=True) | {
            "step": "export", "format": way.target, "adopted": False, "seed": cell.seed,
        }
        label = f"{self.stages[source].label} to {way.target}"
        exported = self._add("convert", settings, {"model": source}, label, (_source_of(way.exporter),))
        return self._deploy(cell, source, exported, runtime, quantization)

    def _deploy(self, cell: Cell, source: str, exported: str, runtime: Component, quantization: str) -> str:
        row, options = conversion_options(runtime, quantization)
        settings = self._runtime(runtime, {}, converts=True) | {
            "step": "deploy", "quantization": row, "quantization_options": options, "seed": cell.seed,
        }
        if row in runtime.facts["calibrated"]:
            settings |= self._dataset(cell)
        label = f"{self.stages[source].label} to {runtime.name} {quantization}"
        return self._add("convert", settings, {"model": exported}, label, (_source_of(runtime),))

    def evaluate(self, cell: Cell, model: str, runtime: Component, source: str | None, exact: str = "") -> str:
        """A source's own evaluation is one stage, whatever is compared with it."""
        if source is not None and model == self.stages[source].inputs["model"]:
            return source
        row, options = conversion_options(runtime, cell.quantization)
        settings = self._serving(cell, runtime) | self._dataset(cell) | {
            "device": cell.device,
            "examples": self.test_examples(cell),
            "exact": exact,
            "reference_examples": self._reference_examples(cell) if exact == "computed" else 0,
            "quantization": row,
            "quantization_options": options,
            "seed": cell.seed,
        }
        inputs = {"model": model} | self._corrupted(cell)
        if source is not None:
            inputs["source"] = source
            if row != FLOAT32 and cell.kind == "architecture":
                inputs["simulated"] = self._simulate(cell, source, row, options)
        label = f"{self.stages[model].label} on {cell.device}{_with(cell)}"
        return self._add("evaluate", settings, inputs, label, self._modules(cell, runtime))

    def _simulate(self, cell: Cell, evaluation: str, row: str, options: Mapping[str, Any]) -> str:
        """What a quantization by itself costs a source's model, whatever the runtime."""
        arithmetic = list(simulation.arithmetic(quantization.ROWS[row], options))
        settings = self._dataset(cell) | {
            "toolchain": toolchain.DEFAULT, "arithmetic": arithmetic, "seed": cell.seed,
            "examples": self.sweep.evaluate.simulated_examples,
        }
        model = self.stages[evaluation].inputs["model"]
        inputs = {"model": model, "evaluation": evaluation} | self._corrupted(cell)
        return self._add("simulate", settings, inputs, f"{self.stages[model].label} in {row}", ())

    def _corrupted(self, cell: Cell) -> dict[str, str]:
        """The test inputs that a cell's models are run on, where they aren't the data set's own: of as many as any stage reads."""
        if cell.corruption == NO_CORRUPTION:
            return {}
        wanted = self.test_examples(cell)
        settings = self._dataset(cell) | {
            "toolchain": toolchain.DEFAULT, "corruption": cell.base("corruption"),
            "corruption_settings": corruptions.resolve(cell.base("corruption"), cell.settings("corruption")),
            "packages": dict(self.facts.corruptions),
            "examples": None if wanted is None else max(wanted, self.sweep.diagnose.examples),
        }
        return {CORRUPTED: self._add("corrupt", settings, {}, f"{cell.dataset} {cell.corruption}", ())}

    def measure(self, cell: Cell, model: str, source: str, runtime: Component, layers: Layers | None) -> str:
        """`layers`: None for a user's own model."""
        reference = self.facts.runtimes[self.sweep.measure.reference]
        way = None if reference.missing else self.route(cell, reference, layers)
        plain = replace(cell, runtime=reference.name)
        settings = self._serving(cell, runtime) | self._dataset(cell) | {
            "device": cell.device,
            "host": self.host.name,
            "cpu": self.host.cpu,
            "reference": self._serving(plain, reference) if way else None,
            "processes": self.sweep.measure.processes,
            "blocks": self.sweep.measure.blocks,
            "throughput_batch": self.sweep.measure.throughput_batch,
            "seed": cell.seed,
        }
        inputs = {"model": model}
        if way is not None:
            deploy = self.deployed_own if layers is None else self.deployed
            inputs["reference"] = deploy(cell, source, reference, FLOAT32, way)
        label = f"{self.stages[model].label} on {cell.device}{_with(cell)}"
        return self._add("measure", settings, inputs, label, self._modules(cell, runtime, _source_of(reference)))

    def craft(self, cell: Cell, source: str, attack: Mapping[str, Any]) -> str:
        """An attack on a framework's own model."""
        component = self.facts.frameworks[cell.framework]
        settings = self._framework(component) | self._attack(cell, attack, attacks.ROWS[cell.base("attack")].access)
        return self._add("attack", settings, {"model": source}, f"{self.stages[source].label} {cell.attack}", (_source_of(component),))

    def attack_deployed(
        self, cell: Cell, model: str, source: str, attack: Mapping[str, Any], access: str, runtime: Component
    ) -> str:
        """An attack on a deployed model, with its source's gradients where it needs some."""
        settings = self._serving(cell, runtime) | self._attack(cell, attack, access) | {"device": cell.device}
        inputs, modules = {"model": model}, self._modules(cell, runtime)
        if access == attacks.STRAIGHT_THROUGH:
            component = self.facts.frameworks[cell.framework]
            settings["twin"], inputs["twin"] = self._framework(component), source
            modules = (*modules, _source_of(component))
        return self._add("attack", settings, inputs, f"{self.stages[model].label} {cell.attack}{_with(cell)}", modules)

    def _attack(self, cell: Cell, attack: Mapping[str, Any], access: str) -> dict[str, Any]:
        return self._dataset(cell) | {
            "attack": cell.base("attack"),
            "attack_settings": {name: value for name, value in attack.items() if name != attacks.CRAFTED_ON},
            "attacker": {"version": self.facts.attacks.version, "lock": self.facts.attacks.lock},
            "access": access,
            "examples": self.sweep.attack.of(cell.base("attack")),
            "seed": cell.seed,
        }

    def transfer(self, cell: Cell, model: str, crafted: str, runtime: Component, access: str) -> str:
        settings = self._serving(cell, runtime) | self._dataset(cell) | {"access": access, "device": cell.device, "seed": cell.seed}
        label = f"{self.stages[model].label} {cell.attack} carried over{_with(cell)}"
        inputs = {"model": model, "attack": crafted}
        return self._add("attack", settings, inputs, label, self._modules(cell, runtime))

    def search(self, cell: Cell, model: str, source: str, runtime: Component) -> str:
        """Inputs near the test images on which a deployed model and its source disagree."""
        component, wanted = self.facts.frameworks[cell.framework], self.sweep.search
        settings = self._serving(cell, runtime) | self._dataset(cell) | {
            "twin": self._framework(component), "examples": wanted.examples, "eps": wanted.eps, "rounds": wanted.rounds,
            "search_seed": wanted.seed, "device": cell.device, "seed": cell.seed,
        }
        modules = (*self._modules(cell, runtime), _source_of(component))
        return self._add("search", settings, {"model": model, "twin": source}, f"{self.stages[model].label}{_with(cell)}", modules)

    def probe(self, cell: Cell, runtime: Component, way: Route) -> str:
        """Probes of one operator: exported by a framework, converted, opened and run by a runtime, both named in full."""
        row, options = conversion_options(runtime, cell.quantization)
        exporter = self._framework(way.exporter, converts=True) | {"threads": self.sweep.threads}
        converter = self._runtime(runtime, {}, converts=True)
        settings = {
            "toolchain": way.exporter.toolchain,
            "exporter": exporter,
            "runtime": self._serving(cell, runtime) | {"convert_lock": converter["lock"]},
            "operator": cell.operator,
            "count": self.sweep.probes.count,
            "seed": self.sweep.probes.seed,
            "format": way.target,
            "quantization": row,
            "quantization_options": options,
        }
        label = f"{cell.operator} from {cell.framework} on {cell.runtime} {cell.quantization}"
        modules = (_source_of(way.exporter), _source_of(runtime), f"sweep.operators.{cell.operator}")
        return self._add("probe", settings, {}, label, modules)

    def adopt(self, cell: Cell) -> str:
        """A user's own model file as a model folder."""
        model = self.facts.models[cell.model]
        settings = self._component(self.facts.formats[model.format], converts=True) | self._dataset(cell) | {
            "path": model.path, "format": model.format, "digest": model.details["digest"], "threads": self.sweep.threads,
        }
        return self._add("adopt", settings, {}, cell.model, (f"sweep.formats.{model.format}",))

    def deployed_own(self, cell: Cell, source: str, runtime: Component, quantization: str, way: Route) -> str:
        """A user's own model as the runtime opens it. Its format writes what is handed on, in that same format too: with all weights in one
        file, and nothing in it but the model."""
        if way.target == NATIVE:
            return source
        settings = self._component(way.exporter, converts=True) | {
            "step": "export", "format": way.target, "adopted": True, "seed": cell.seed,
        }
        label = f"{self.stages[source].label} to {way.target}"
        exported = self._add("convert", settings, {"model": source}, label, (_source_of(way.exporter),))
        return self._deploy(cell, source, exported, runtime, quantization)

    def native(self) -> Component:
        """The runtime that opens frameworks' own formats."""
        return next(runtime for runtime in self.facts.runtimes.values() if not runtime.missing and NATIVE in runtime.facts["accepts"])

    def route(self, cell: Cell, runtime: Component, layers: Layers | None) -> Route | None:
        """`layers`: None for a user's own model."""
        if layers is None:
            return own_route(self.facts.formats[self.facts.models[cell.model].format], runtime)
        return route(self.facts.frameworks[cell.framework], runtime, layers, way_round(self.sweep, self.facts), self.facts)

    def test_examples(self, cell: Cell) -> int | None:
        return self.sweep.training(cell.dataset, cell.architecture).test_examples or self.sweep.evaluate.examples

    def _reference_examples(self, cell: Cell) -> int:
        """A user's own file in double precision runs input by input in plain Python."""
        wanted = self.sweep.evaluate.reference_examples
        return min(wanted, OWN_REFERENCE_EXAMPLES) if cell.kind == "model" else wanted

    def _add(
        self, kind: str, settings: dict[str, Any], inputs: dict[str, str], label: str, modules: tuple[str, ...], gpu: bool = False
    ) -> str:
        settings["sources"] = sources.digest((f"sweep.stages.{kind}", f"sweep.work.{kind}", *modules))
        key = digest(kind, settings, inputs)
        self.stages.setdefault(key, Stage(kind, settings, inputs, key, label, gpu))
        return key

    def _framework(self, component: Component, converts: bool = False) -> dict[str, Any]:
        return {"framework": toolchain.base(component.name), "options": framework_options(component, self.sweep)} | self._component(
            component, converts
        )

    def _runtime(self, component: Component, variant: Mapping[str, Any], converts: bool = False) -> dict[str, Any]:
        return {"runtime": toolchain.base(component.name), "options": serving_options(component, self.sweep, variant)} | self._component(
            component, converts
        )

    def _serving(self, cell: Cell, runtime: Component) -> dict[str, Any]:
        """A runtime as it serves a cell's model: a framework's own runs where the framework is."""
        settings = self._runtime(runtime, cell.settings("runtime"))
        if runtime is not self.native():
            return settings
        if cell.kind == "model":
            own = self.facts.formats[self.facts.models[cell.model].format]
            return settings | {"toolchain": own.toolchain, "lock": own.lock}
        return settings | {"toolchain": self.facts.frameworks[cell.framework].toolchain}

    def _component(self, component: Component, converts: bool) -> dict[str, Any]:
        found = {
            "module": component.module,
            "toolchain": component.toolchain,
            "version": component.version,
            "lock": component.convert_lock if converts else component.lock,
        }
        return found if converts else found | {"threads": self.sweep.threads}

    def _dataset(self, cell: Cell) -> dict[str, Any]:
        data = self.data[cell.dataset]
        return {"dataset": data.name, "dataset_digest": data.digest, "splits": data.splits}

    def _modules(self, cell: Cell, runtime: Component, *further: str) -> tuple[str, ...]:
        """The modules that open a model on the cell's device; a framework's own where it serves itself."""
        own: tuple[str, ...] = ()
        if runtime is self.native():
            named = cell.kind == "model"
            own = (f"sweep.formats.{self.facts.models[cell.model].format}" if named else _source_of(self.facts.frameworks[cell.framework]),)
        return (f"sweep.devices.{cell.device}", f"sweep.runtimes.{runtime.module}", *own, *further)


def _source_of(component: Component) -> str:
    return f"sweep.{component.kind}.{component.module}"


def _but(control: str) -> str:
    return "" if control == NO_CONTROL else f", {control}"


def _with(cell: Cell) -> str:
    """How the cell's model is served, where that is not as usual."""
    settings = cell.settings("runtime")
    return f", {', '.join(f'{name}={value}' for name, value in settings.items())}" if settings else ""
