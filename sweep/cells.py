"""A row of the table from the results of the stages that a cell is made of. Pure."""

from collections.abc import Mapping
from typing import Any

from sweep import company, trust
from sweep.axes import NO_CONTROL
from sweep.grid import Cell
from sweep.plan import Beside, Plan, PlannedCell
from sweep.records import BROKEN, FAILED, OK, SKIPPED, CellRecord
from sweep.scheduling import Outcome

SHOWN_FACTS = ("host", "threads")
EVALUATED_FACTS = ("parity", "parity_reason", "degenerate", "batch_invariant", "deterministic")
FOUND_FACTS = {
    "diagnosis": ("diagnosis", "diagnosis"), "deployed_diagnosis": ("diagnosis", "deployed_diagnosis"), "trace": ("training", "training"),
    "attack": ("engine", "engine"),
}
"""What a stage found out in words, by its role: the fact, and the tag that it becomes."""
INTERNAL_FACTS = ("backend",)
MEASURED_FACTS = ("energy", "latency_verdict", "latency_unstable", "load_average")


def stages_of(planned: PlannedCell, plan: Plan) -> list[str]:
    """Every stage that a cell rests on, inputs first."""
    found: dict[str, None] = {}
    for key in planned.stages.values():
        found.update(dict.fromkeys(plan.upstream(key)))
    return list(found)


def awaited(planned: PlannedCell, plan: Plan) -> set[str]:
    """Every stage whose end a cell's row waits for."""
    return {*stages_of(planned, plan), *(other.stage for other in planned.beside)}


def record(planned: PlannedCell, plan: Plan, outcomes: Mapping[str, Outcome], common: Mapping[str, str]) -> CellRecord:
    """The row of a cell whose stages are all decided, or that is skipped. `common` are tags that all rows of a sweep share."""
    cell = planned.cell
    name = _name(cell)
    keys = stages_of(planned, plan)
    tags = dict(common) | ({"access": planned.access} if planned.access else {})
    if planned.reason is not None:
        return CellRecord(planned.key, name, planned.params, tags | {"status": SKIPPED, "reason": planned.reason}, {}, keys)
    tags |= _facts(planned, plan, outcomes) | _flags(planned, plan, outcomes)
    failed = [key for key in keys if outcomes[key].status == FAILED and outcomes[key].failure_class != "upstream_failed"]
    if failed:
        first = outcomes[failed[0]]
        tags |= {"status": FAILED, "failure_class": first.failure_class, "failed_stage": first.kind, "message": first.message}
    else:
        tags["status"] = OK
    return CellRecord(planned.key, name, planned.params, tags, _metrics(planned, plan, outcomes), keys, planned.replaces)


def _name(cell: Cell) -> str:
    if cell.kind != "architecture":
        return "-".join(map(str, cell.axes().values()))
    parts = (cell.framework, cell.dataset, cell.architecture, cell.quantization, cell.runtime, cell.device, cell.attack, cell.seed)
    usual = ((cell.recipe, "defaults"), (cell.weights, "trained"), (cell.control, NO_CONTROL))
    return "-".join(map(str, (*parts, *(value for value, default in usual if value != default))))


def _metrics(planned: PlannedCell, plan: Plan, outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """A cell's own figures and those of what it rests on; none where nothing was measured."""
    found: dict[str, float] = {}
    if "probe" in planned.stages:
        return {name: value for name, value in outcomes[planned.stages["probe"]].metrics.items() if name != "stage_seconds"}
    own_work = plan.upstream(planned.stages["model"])
    for key in [*own_work, *_attacking(planned, plan)]:  # not what a measurement's reference took
        for name, value in outcomes[key].metrics.items():
            if name.endswith("_seconds") and name != "stage_seconds":
                found[name] = found.get(name, 0.0) + value  # a conversion may have several edges
    for role in ("evaluation", "measurement", "attack", "diagnosis", "deployed_diagnosis", "trace", "search"):
        if role in planned.stages:
            own = outcomes[planned.stages[role]].metrics
            found |= {name: value for name, value in own.items() if name != "stage_seconds"}
    if plan.stages[planned.stages["source"]].kind != "train":
        found.pop("train_seconds", None)  # another framework's training
    judged = [*own_work, planned.stages["evaluation"]]
    if any(BROKEN in (outcomes[key].facts.get("parity"), outcomes[key].facts.get("proof")) for key in judged):
        found = {name: value for name, value in found.items() if not name.startswith("latency_ratio")}
    source = outcomes.get(planned.stages["source_evaluation"])
    if source is not None and "accuracy" in source.metrics:
        found["source_accuracy"] = source.metrics["accuracy"]
        if "float32_error_max" in source.metrics:
            found["float32_error_max"] = source.metrics["float32_error_max"]
    return found


def _attacking(planned: PlannedCell, plan: Plan) -> list[str]:
    """The attack's stage, behind that of the set that it carries over; what another model of the set took isn't the cell's."""
    key = planned.stages.get("attack")
    return [] if key is None else [*filter(None, [plan.stages[key].inputs.get("attack")]), key]


def _flags(planned: PlannedCell, plan: Plan, outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Why an attack's figures are not to be trusted, by the model that it was crafted on and by the other attacks on the cell's."""
    key = planned.stages.get("attack", "")
    if not key or outcomes[key].status != OK:
        return {}

    def attacked(other: Beside) -> trust.Attacked:
        found = outcomes[other.stage].metrics
        return trust.Attacked(*other[:4], found["robust_accuracy"], int(found["attack_n"]))

    crafted = outcomes[plan.stages[key].inputs.get("attack", key)]
    others = [attacked(other) for other in planned.beside if outcomes[other.stage].status == OK]
    flags = [*trust.of_model(crafted.metrics), *trust.among(attacked(company.of(planned)), others)]
    return {"attack_flags": "; ".join(flags)} if flags else {}


def _facts(planned: PlannedCell, plan: Plan, outcomes: Mapping[str, Any]) -> dict[str, str]:
    if "probe" in planned.stages:
        return {name: value for name, value in outcomes[planned.stages["probe"]].facts.items() if name not in INTERNAL_FACTS}
    facts = dict(outcomes[planned.stages["evaluation"]].facts)
    found = {name: facts[name] for name in (*SHOWN_FACTS, *EVALUATED_FACTS) if name in facts}
    found |= {k: v for k, v in facts.items() if k.startswith("runs_")}
    proofs = [outcomes[key].facts["proof"] for key in plan.upstream(planned.stages["model"]) if "proof" in outcomes[key].facts]
    if proofs:
        found["proof"] = BROKEN if BROKEN in proofs else proofs[0]
    for role, (name, tag) in FOUND_FACTS.items():
        if role in planned.stages and name in outcomes[planned.stages[role]].facts:
            found[tag] = outcomes[planned.stages[role]].facts[name]
    if "measurement" in planned.stages:
        measured = outcomes[planned.stages["measurement"]].facts
        found |= {name: measured[name] for name in MEASURED_FACTS if name in measured}
        if BROKEN in (facts.get("parity"), found.get("proof")):
            found["latency_verdict"] = "withheld: it does not compute its source's function"
    return found
