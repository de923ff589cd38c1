"""The tables of a report on probes: what became of them by operator and runtime, and which faults they show. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from sweep.deployment import framework_of, runtime_of
from sweep.probing.blame import blame
from sweep.probing.found import FAULTY, VERDICTS, fault_of
from sweep.records import FAILED, OK, CellRecord
from sweep.sheet import Sheet

OPTION = "runtime_"
"""A row's params that say how it was served start so; the version is among them."""

Records = Sequence[Mapping[str, Any]]


def operators(rows: Sequence[CellRecord]) -> Sheet:
    """A line for each operator, framework and quantization, a column for each runtime and version."""
    probed = [row for row in rows if "operator" in row.params]
    runtimes = list(dict.fromkeys(runtime_of(row) for row in probed))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in probed:
        at = (row.params["operator"], framework_of(row), str(row.params["quantization"]))
        lines.setdefault(at, {})[runtime_of(row)] = _counts(row)
    data = [
        dict(zip(("operator", "framework", "quantization"), at, strict=True)) | {name: found.get(name, "") for name in runtimes}
        for at, found in sorted(lines.items())
    ]
    notes = [
        "right / wrong / unsupported, then, if there are any, those that are undecided since zeros would be right in steps so coarse, that "
        "ended their process, and that took too long."
    ]
    return Sheet("operators", "Operators by runtime and version", data, data, notes)


def _counts(row: CellRecord) -> str:
    if row.tags["status"] == FAILED:
        return row.tags["failure_class"]
    if row.tags["status"] != OK:
        return "skipped"
    right, wrong, undecided, unsupported, crashed, late = (int(row.metrics.get(f"probes_{name}", 0)) for name in VERDICTS)
    ended = [f"{undecided} undecided"] * bool(undecided) + [f"{crashed} crashed"] * bool(crashed) + [f"{late} timed out"] * bool(late)
    return ", ".join([f"{right} / {wrong} / {unsupported}", *ended])


def faults(rows: Sequence[CellRecord], records: Mapping[str, Records]) -> Sheet:
    """A line for each kind of fault in each cell, with the option or version that tells the cells where it shows from those where it
    doesn't; `records` has the content of a row's `probes.json` by the row's key."""
    cells: dict[tuple[str, ...], list[CellRecord]] = {}
    for row in rows:
        if row.key in records:
            name = row.params["runtime"].partition("(")[0].partition("@")[0]
            cells.setdefault((row.params["operator"], framework_of(row), str(row.params["quantization"]), name), []).append(row)
    data = []
    for (operator, framework, quantization, _name), alike in cells.items():
        decides = blame([{"options": _options(row), "records": records[row.key]} for row in alike])
        for row in alike:
            failing: dict[str, list[Mapping[str, Any]]] = {}
            for record in records[row.key]:
                if fault := fault_of(record):
                    failing.setdefault(fault, []).append(record)
            for fault, of_it in sorted(failing.items(), key=lambda item: -len(item[1])):
                told = dict.fromkeys(decides[record["id"]] for record in of_it if record["id"] in decides)
                data.append({
                    "operator": operator, "framework": framework, "runtime": runtime_of(row), "quantization": quantization, "fault": fault,
                    "probes": len(of_it), "in the framework too": sum(record["framework"] in FAULTY for record in of_it),
                    "decides": "; ".join(told),
                })
    shown = [{name: str(value) for name, value in line.items()} for line in data]
    notes = ["Each has a folder among the artifacts of its stage, `reproducers/OPERATOR-FAULT`, that shows it without this project."]
    return Sheet("faults", "Faults that probes found", data, shown, notes)


def _options(row: CellRecord) -> dict[str, str]:
    return {name.removeprefix(OPTION): str(value) for name, value in row.params.items() if name.startswith(OPTION)}
