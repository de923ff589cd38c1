"""The stages that a cell's model goes through. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sweep import corruptions, quantization, simulation, toolchain
from sweep.axes import FLOAT32, FLOAT64, NATIVE, NO_CONTROL, NO_CORRUPTION, ONE_ULP
from sweep.collecting import Stages, served_how, source_of
from sweep.contracts import Layers
from sweep.facts import Component
from sweep.grid import Cell
from sweep.settings import conversion_options
from sweep.support import TRANSPLANT, Route, own_route, route, way_round
from sweep.work import CORRUPTED

OWN_REFERENCE_EXAMPLES = 16
DRAWS = 3
TRACED = [
    (NO_CONTROL, NO_CONTROL, 0), *((f"{ONE_ULP}_{draw}", ONE_ULP, draw) for draw in range(DRAWS)), (FLOAT64, FLOAT64, 0),
]
"""What a comparison of steps reads of each side: name, control and draw. One draw of ulps would show too little: whether it happens to turn
the largest of a pooling window into the second largest is a matter of luck, and from there on losses differ a thousand times more."""


class Staging(Stages):
    """The stages of networks, operators and users' own models, from training to measurement; each method returns the key of the stage
    that it names."""

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
        settings = self.framework(component) | {
            "architecture": cell.architecture,
            "layers": layers,
            "classes": data.classes,
            "plan": plan,
            "examples": training.examples,
            "test_examples": training.test_examples,
            "control": control,
            "processor": processor,
            **self.dataset(cell),
            **further,
        }
        label = f"{framework} {cell.architecture} {cell.dataset} {cell.recipe} seed {cell.seed}{_but(control)}"
        return self.add(kind, settings, {}, label, (source_of(component),), gpu=processor == "gpu")

    def _transplant(self, owner: Cell, source: str, framework: str, control: str = NO_CONTROL) -> str:
        """A model rebuilt in another framework, proved on the inputs that its owner was evaluated on."""
        component = self.facts.frameworks[framework]
        settings = self.framework(component, converts=True) | self.dataset(owner) | {"seed": owner.seed, "control": control}
        label = f"{self.stages[source].label} to {framework}{_but(control)}"
        inputs = {"model": source, "evaluation": self.source_evaluation(replace(owner, corruption=NO_CORRUPTION), source)}
        return self.add("transplant", settings, inputs, label, (source_of(component),))

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
        settings = self.framework(component) | self.dataset(cell) | {
            "examples": self.sweep.diagnose.examples, "when": self.sweep.diagnose.when, "seed": cell.seed,
        }
        inputs = {"model": model, "source": self.stages[model].inputs.get("model", model), "evaluation": evaluation}
        inputs |= self._corrupted(cell)
        return self.add("diagnose", settings, inputs, self.stages[model].label, (source_of(component),))

    def diagnose_deployed(self, cell: Cell, model: str, source: str, evaluation: str, runtime: Component) -> str:
        """Where a converted model parts from its source; only looked into where it does, unless the sweep says always."""
        row, options = conversion_options(runtime, cell.quantization)
        settings = self.serving(cell, runtime) | self.dataset(cell) | {
            "quantization": row, "quantization_options": options, "examples": self.sweep.diagnose.examples,
            "when": self.sweep.diagnose.when, "seed": cell.seed,
        }
        if cell.kind == "model":
            settings["source_runtime"] = self.serving(replace(cell, runtime=self.native().name), self.native())
        inputs = {"model": model, "source": source, "evaluation": evaluation} | self._corrupted(cell)
        label = f"{self.stages[model].label}{served_how(cell)}"
        return self.add("diagnose", settings, inputs, label, (source_of(runtime), *self.modules(cell, self.native())))

    def compare_traces(self, cell: Cell, layers: Layers) -> str:
        """Equal steps from equal weights, here and in the framework that all are held against, each with its controls."""
        assert self.sweep.trace.against is not None
        inputs = {}
        for side, framework in (("own", cell.framework), ("against", self.sweep.trace.against)):
            for name, control, draw in TRACED if self.facts.frameworks[framework].facts["float64"] else TRACED[:-1]:
                further = {"steps": self.sweep.trace.steps, "draw": draw}
                inputs[f"{side}_{name}"] = self._training("trace", cell, framework, layers, control, further)
        settings = {"toolchain": toolchain.DEFAULT, "seed": cell.seed, "against": self.sweep.trace.against}
        return self.add("compare", settings, inputs, f"{self.stages[inputs['own_none']].label} and {self.sweep.trace.against}", ())

    def deployed(self, cell: Cell, source: str, runtime: Component, quantization: str, way: Route) -> str:
        """The model that the runtime opens. A framework's own format needs no conversion."""
        if way.target == NATIVE:
            return source
        if way.name.startswith(TRANSPLANT):
            source = self._transplant(cell, source, way.exporter.name)
        settings = self.framework(way.exporter, converts=True) | {
            "step": "export", "format": way.target, "adopted": False, "seed": cell.seed,
        }
        label = f"{self.stages[source].label} to {way.target}"
        exported = self.add("convert", settings, {"model": source}, label, (source_of(way.exporter),))
        return self._deploy(cell, source, exported, runtime, quantization)

    def _deploy(self, cell: Cell, source: str, exported: str, runtime: Component, quantization: str) -> str:
        row, options = conversion_options(runtime, quantization)
        settings = self.runtime(runtime, {}, converts=True) | {
            "step": "deploy", "quantization": row, "quantization_options": options, "seed": cell.seed,
        }
        if row in runtime.facts["calibrated"]:
            settings |= self.dataset(cell)
        label = f"{self.stages[source].label} to {runtime.name} {quantization}"
        return self.add("convert", settings, {"model": exported}, label, (source_of(runtime),))

    def evaluate(self, cell: Cell, model: str, runtime: Component, source: str | None, exact: str = "") -> str:
        """A source's own evaluation is one stage, whatever is compared with it."""
        if source is not None and model == self.stages[source].inputs["model"]:
            return source
        row, options = conversion_options(runtime, cell.quantization)
        settings = self.serving(cell, runtime) | self.dataset(cell) | {
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
        label = f"{self.stages[model].label} on {cell.device}{served_how(cell)}"
        return self.add("evaluate", settings, inputs, label, self.modules(cell, runtime))

    def _simulate(self, cell: Cell, evaluation: str, row: str, options: Mapping[str, Any]) -> str:
        """What a quantization by itself costs a source's model, whatever the runtime."""
        arithmetic = list(simulation.arithmetic(quantization.ROWS[row], options))
        settings = self.dataset(cell) | {
            "toolchain": toolchain.DEFAULT, "arithmetic": arithmetic, "seed": cell.seed,
            "examples": self.sweep.evaluate.simulated_examples,
        }
        model = self.stages[evaluation].inputs["model"]
        inputs = {"model": model, "evaluation": evaluation} | self._corrupted(cell)
        return self.add("simulate", settings, inputs, f"{self.stages[model].label} in {row}", ())

    def _corrupted(self, cell: Cell) -> dict[str, str]:
        """The test inputs that a cell's models are run on, where they aren't the data set's own: of as many as any stage reads."""
        if cell.corruption == NO_CORRUPTION:
            return {}
        wanted = self.test_examples(cell)
        settings = self.dataset(cell) | {
            "toolchain": toolchain.DEFAULT, "corruption": cell.base("corruption"),
            "corruption_settings": corruptions.resolve(cell.base("corruption"), cell.settings("corruption")),
            "packages": dict(self.facts.corruptions),
            "examples": None if wanted is None else max(wanted, self.sweep.diagnose.examples),
        }
        return {CORRUPTED: self.add("corrupt", settings, {}, f"{cell.dataset} {cell.corruption}", ())}

    def measure(self, cell: Cell, model: str, source: str, runtime: Component, layers: Layers | None) -> str:
        """`layers`: None for a user's own model."""
        reference = self.facts.runtimes[self.sweep.measure.reference]
        way = None if reference.missing else self.route(cell, reference, layers)
        plain = replace(cell, runtime=reference.name)
        settings = self.serving(cell, runtime) | self.dataset(cell) | {
            "device": cell.device,
            "host": self.host.name,
            "cpu": self.host.cpu,
            "reference": self.serving(plain, reference) if way else None,
            "processes": self.sweep.measure.processes,
            "blocks": self.sweep.measure.blocks,
            "throughput_batch": self.sweep.measure.throughput_batch,
            "seed": cell.seed,
        }
        inputs = {"model": model}
        if way is not None:
            deploy = self.deployed_own if layers is None else self.deployed
            inputs["reference"] = deploy(cell, source, reference, FLOAT32, way)
        label = f"{self.stages[model].label} on {cell.device}{served_how(cell)}"
        return self.add("measure", settings, inputs, label, self.modules(cell, runtime, source_of(reference)))

    def probe(self, cell: Cell, runtime: Component, way: Route) -> str:
        """Probes of one operator: exported by a framework, converted, opened and run by a runtime, both named in full."""
        row, options = conversion_options(runtime, cell.quantization)
        exporter = self.framework(way.exporter, converts=True) | {"threads": self.sweep.threads}
        converter = self.runtime(runtime, {}, converts=True)
        settings = {
            "toolchain": way.exporter.toolchain,
            "exporter": exporter,
            "runtime": self.serving(cell, runtime) | {"convert_lock": converter["lock"]},
            "operator": cell.operator,
            "count": self.sweep.probes.count,
            "seed": self.sweep.probes.seed,
            "format": way.target,
            "quantization": row,
            "quantization_options": options,
        }
        label = f"{cell.operator} from {cell.framework} on {cell.runtime} {cell.quantization}"
        modules = (source_of(way.exporter), source_of(runtime), f"sweep.operators.{cell.operator}")
        return self.add("probe", settings, {}, label, modules)

    def adopt(self, cell: Cell) -> str:
        """A user's own model file as a model folder."""
        model = self.facts.models[cell.model]
        settings = self.component(self.facts.formats[model.format], converts=True) | self.dataset(cell) | {
            "path": model.path, "format": model.format, "digest": model.details["digest"], "threads": self.sweep.threads,
        }
        return self.add("adopt", settings, {}, cell.model, (f"sweep.formats.{model.format}",))

    def deployed_own(self, cell: Cell, source: str, runtime: Component, quantization: str, way: Route) -> str:
        """A user's own model as the runtime opens it. Its format writes what is handed on, in that same format too: with all weights in one
        file, and nothing in it but the model."""
        if way.target == NATIVE:
            return source
        settings = self.component(way.exporter, converts=True) | {
            "step": "export", "format": way.target, "adopted": True, "seed": cell.seed,
        }
        label = f"{self.stages[source].label} to {way.target}"
        exported = self.add("convert", settings, {"model": source}, label, (source_of(way.exporter),))
        return self._deploy(cell, source, exported, runtime, quantization)

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

def _but(control: str) -> str:
    return "" if control == NO_CONTROL else f", {control}"
