"""From cells to a plan: each cell with the stages it is made of, or the reason why it can't run. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sweep import attacking, attacks, components, corruptions, settings
from sweep.axes import NO_ATTACK, NO_CONTROL, NO_CORRUPTION
from sweep.company import beside_each_other
from sweep.contracts import Layers
from sweep.errors import ConfigError
from sweep.facts import Component, Facts
from sweep.grid import Cell, DatasetFacts, expand, layers_of
from sweep.plan import TRANSFER, Host, Plan, PlannedCell, PreparedData, digest
from sweep.schema import Sweep
from sweep.staging import Staging
from sweep.support import UNAVAILABLE, own_route, route, trainable, unsupported, unsupported_model, unsupported_operator

VERSIONS = ("framework_version", "runtime_version")


def make(sweep: Sweep, facts: Facts, data: Mapping[str, PreparedData], host: Host) -> Plan:
    """The plan of a sweep. Raises ConfigError for settings that can't be meant."""
    settings.check(sweep, facts)
    _check_trace(sweep, facts)
    planner = _Planner(sweep, facts, data, host)
    cells = [planner.cell(cell) for cell in expand(sweep)]
    if not cells:
        raise ConfigError("exclude: every cell of the grid is excluded")
    return Plan(beside_each_other(cells), planner.staging.stages)


def _check_trace(sweep: Sweep, facts: Facts) -> None:
    if sweep.trace.steps and (against := facts.frameworks[sweep.trace.against or ""]).missing:
        raise ConfigError(f"trace.against: {against.name} can't be used here ({against.missing})")


def _starts_equal(cell: Cell) -> bool:
    return (cell.recipe, cell.weights, cell.control) == ("identical", "trained", NO_CONTROL)


class _Planner:
    """Translates cells, and remembers the networks that it has seen."""

    def __init__(self, sweep: Sweep, facts: Facts, data: Mapping[str, PreparedData], host: Host) -> None:
        self.sweep, self.facts, self.data = sweep, facts, data
        self.staging = Staging(sweep, facts, data, host)
        self._layers: dict[tuple[str, str], Layers | ValueError] = {}

    def cell(self, cell: Cell) -> PlannedCell:
        return {"operator": self._operator, "model": self._own_model, "architecture": self._network}[cell.kind](cell)

    def _own_model(self, cell: Cell) -> PlannedCell:
        """A user's own file in place of what a framework trained."""
        data, runtime = self.data[cell.dataset], self.facts.runtimes[cell.base("runtime")]
        model = self.facts.models[cell.model]
        own = self.facts.formats[model.format]
        params = cell.axes() | self._options(cell, runtime) | {
            "model_format": model.format, "model_digest": model.details.get("digest", "")[:12], "dataset_digest": data.digest[:12],
            "framework_version": own.version, "runtime_version": runtime.version or own.version,
            "threads": self.sweep.threads, "eval_examples": self.staging.test_examples(cell) or "all",
        }
        versionless = digest({name: value for name, value in params.items() if name not in VERSIONS})
        if reason := unsupported_model(cell, self.facts, data.shape, data.dtype):
            return PlannedCell(cell, versionless if reason.startswith(UNAVAILABLE) else digest(params), reason, {}, params)
        add, way = self.staging, own_route(own, runtime)
        assert way is not None, "a cell without a route is a skip"
        stages = {"source": add.adopt(cell)}
        stages["source_evaluation"] = add.source_evaluation(cell, stages["source"])
        stages["model"] = add.deployed_own(cell, stages["source"], runtime, cell.quantization, way)
        stages["evaluation"] = add.evaluate(cell, stages["model"], runtime, stages["source_evaluation"])
        stages |= self._diagnosed(cell, stages, runtime)
        if self._measured(cell):
            stages["measurement"] = add.measure(cell, stages["model"], stages["source"], runtime, None)
        return PlannedCell(cell, digest(params), None, stages, params | {"route": way.name}, replaces=versionless)

    def _diagnosed(self, cell: Cell, stages: Mapping[str, str], runtime: Component) -> dict[str, str]:
        """A converted model is held against its source, layer by layer; a source's own is another matter."""
        if stages["model"] == stages["source"] or self.sweep.diagnose.when == "never":
            return {}
        found = self.staging.diagnose_deployed(cell, stages["model"], stages["source"], stages["evaluation"], runtime)
        return {"deployed_diagnosis": found}

    def _measured(self, cell: Cell) -> bool:
        return self.sweep.measure.enabled and bool(components.load("devices", cell.device).FACTS["latency"])

    def _operator(self, cell: Cell) -> PlannedCell:
        """An operator's probes are one stage, on the way that a model of the framework would take to the runtime."""
        framework, runtime = self.facts.frameworks[cell.framework], self.facts.runtimes[cell.base("runtime")]
        params = cell.axes() | self._versions(framework, runtime) | self._options(cell, runtime)
        params |= {"threads": self.sweep.threads, "probes_count": self.sweep.probes.count, "probes_seed": self.sweep.probes.seed}
        versionless = digest({name: value for name, value in params.items() if name not in VERSIONS})
        if reason := unsupported_operator(cell, self.facts):
            return PlannedCell(cell, versionless if reason.startswith(UNAVAILABLE) else digest(params), reason, {}, params)
        way = route(framework, runtime, [], None, self.facts)
        assert way is not None, "a cell without a route is a skip"
        stages = {"probe": self.staging.probe(cell, runtime, way)}
        return PlannedCell(cell, digest(params), None, stages, params | {"route": way.name}, replaces=versionless)

    def _network(self, cell: Cell) -> PlannedCell:
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
        framework, runtime = self.facts.frameworks[cell.framework], self.facts.runtimes[cell.base("runtime")]
        params = cell.axes() | self._versions(framework, runtime) | {
            "dataset_digest": self.data[cell.dataset].digest[:12],
            "threads": self.sweep.threads,
            "eval_examples": self.staging.test_examples(cell) or "all",
        }
        training.pop("test_examples")  # is eval_examples
        if label := training.pop("label"):
            params["label"] = label
        params |= {f"train_{name}": "all" if value is None and name == "examples" else value for name, value in training.items()}
        if cell.weights == "same":
            params["weights_from"] = self.sweep.same_weights_from
        if cell.corruption != NO_CORRUPTION:
            resolved = corruptions.resolve(cell.base("corruption"), cell.settings("corruption"))
            params |= {f"corruption_{name}": value for name, value in resolved.items()}
        if cell.attack != NO_ATTACK:
            params["attack_examples"] = self.sweep.attack.of(cell.base("attack"))
            params |= {f"attack_{name}": value for name, value in attack.items()}
        return params | self._options(cell, runtime)

    @staticmethod
    def _versions(framework: Component, runtime: Component) -> dict[str, str]:
        return {"framework_version": framework.version, "runtime_version": runtime.version or framework.version}

    def _options(self, cell: Cell, runtime: Component) -> dict[str, Any]:
        """How a model is served and converted, as far as there is a choice."""
        if runtime.missing:
            return {}
        serving = settings.serving_options(runtime, self.sweep, cell.settings("runtime"))
        conversion = settings.conversion_options(runtime, cell.quantization)[1]
        named = [("runtime", serving), ("quantization", conversion)]
        return {f"{of}_{name}": "all" if value is None else value for of, options in named for name, value in options.items()}

    def _runnable(self, cell: Cell, layers: Layers, attack: Mapping[str, Any], params: dict[str, Any]) -> PlannedCell:
        add, runtime = self.staging, self.facts.runtimes[cell.base("runtime")]
        way = add.route(cell, runtime, layers)
        assert way is not None, "a cell without a route is a skip"
        stages = {"source": add.source(cell, layers)}
        stages["source_evaluation"] = add.source_evaluation(cell, stages["source"])
        transplanted = add.stages[stages["source"]].kind == "transplant"
        if self.sweep.diagnose.when == "always" or (transplanted and self.sweep.diagnose.when == "parity_fails"):
            stages["diagnosis"] = add.diagnose(cell, stages["source"], stages["source_evaluation"])
        if self.sweep.trace.steps and _starts_equal(cell) and self._can_be_held_against(cell, layers):
            stages["trace"] = add.compare_traces(cell, layers)
        stages["model"] = add.deployed(cell, stages["source"], runtime, cell.quantization, way)
        stages["evaluation"] = add.evaluate(cell, stages["model"], runtime, stages["source_evaluation"])
        stages |= self._diagnosed(cell, stages, runtime)
        if self._measured(cell):
            stages["measurement"] = add.measure(cell, stages["model"], stages["source"], runtime, layers)
        if self._searched(cell, stages, layers):
            stages["search"] = attacking.search(add, cell, stages["model"], stages["source"], runtime)
        access = None
        if cell.attack != NO_ATTACK:
            stages["attack"], access = self._attacked(cell, layers, attack, stages, runtime)
        return PlannedCell(cell, digest(params), None, stages, params | {"route": way.name}, access)

    def _searched(self, cell: Cell, stages: Mapping[str, str], layers: Layers) -> bool:
        """A search for disagreements starts from images as the data set has them: one for a converted model, however it is attacked and
        whatever else it is evaluated on."""
        return bool(self.sweep.search.examples) and stages["model"] != stages["source"] and layers[0]["kind"] != "tokens"

    def _attacked(
        self, cell: Cell, layers: Layers, attack: Mapping[str, Any], stages: Mapping[str, str], runtime: Component
    ) -> tuple[str, str]:
        """The stage that attacks a cell's model, and what that sees of it."""
        add, place, access = self.staging, attack[attacks.CRAFTED_ON], attacks.ROWS[cell.base("attack")].access
        source, model = stages["source"], stages["model"]
        if place not in (attacks.SOURCE, attacks.DEPLOYED, cell.framework):
            other = replace(cell, framework=place)
            source = add.source(other, layers)
            access = TRANSFER if cell.weights == "same" else f"transfer:{source}"
            crafted = attacking.craft(add, other, source, attack)
            return attacking.transfer(add, cell, model, crafted, runtime, access), access
        if model == source:
            return attacking.craft(add, cell, source, attack), access
        if place != attacks.DEPLOYED:
            return attacking.transfer(add, cell, model, attacking.craft(add, cell, source, attack), runtime, TRANSFER), TRANSFER
        access = attacks.STRAIGHT_THROUGH if access == attacks.WHITE_BOX else access
        return attacking.attack_deployed(add, cell, model, source, attack, access, runtime), access

    def _can_be_held_against(self, cell: Cell, layers: Layers) -> bool:
        against = self.sweep.trace.against
        return against is not None and against != cell.framework and not trainable(cell, self.sweep, self.facts.frameworks[against], layers)

    def _attack_settings(self, cell: Cell) -> dict[str, Any]:
        if cell.attack == NO_ATTACK:
            return {}
        name = cell.base("attack")
        try:
            found = attacks.resolve(name, cell.dataset, self.sweep.attack_settings(cell.attack))
            if len(shape := self.data[cell.dataset].shape) == 3:
                attacks.check_reach(name, found, shape)
            return found
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
