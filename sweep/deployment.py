"""The tables of a report on deployed models: what each conversion kept of its source, and which inputs they changed. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweep.axes import NATIVE, NO_ATTACK, NO_CORRUPTION
from sweep.parity import VERDICTS, WRONG
from sweep.records import FAILED, OK, SKIPPED, CellRecord
from sweep.sheet import Sheet

if TYPE_CHECKING:
    import pandas

SOURCE = ("model", "framework", "framework_version", "dataset", "architecture", "recipe", "weights", "control", "seed", "corruption")
DEPLOYED = ("runtime", "runtime_version", "quantization", "route", "device")
FIGURES = (
    "accuracy", "source_accuracy", "disagreement", "parity_decided_disagreements", "logit_diff_p50", "logit_diff_p90", "logit_diff_p99",
    "logit_diff_max", "parity_tolerance", "clipped_outputs", "model_size_bytes", "latency_ratio", "search_found_share",
    "search_random_share",
)
SHARES = 100.0


@dataclass(frozen=True)
class Flip:
    """An input that a conversion answers otherwise than its source does."""

    index: int
    label: int
    before: int
    margin: float
    after: int
    margin_after: float


def deployments(rows: Sequence[CellRecord]) -> Sheet:
    """Every conversion, a line each, however often it was attacked."""
    data, shown = [], []
    seen: set[tuple[str, ...]] = set()
    for row in sorted(rows, key=lambda row: row.params.get("attack", NO_ATTACK) != NO_ATTACK):
        if row.tags["status"] != OK or not is_deployed(row):
            continue
        axes = {name: row.params[name] for name in (*SOURCE, *DEPLOYED) if name in row.params}
        if tuple(axes.values()) in seen and row.params.get("attack", NO_ATTACK) != NO_ATTACK:
            continue
        seen.add(tuple(axes.values()))
        said = {"parity": row.tags.get("parity", ""), "diagnosis": row.tags.get("deployed_diagnosis", "")}
        data.append(axes | said | {name: row.metrics.get(name) for name in FIGURES} | {"reason": row.tags.get("parity_reason", "")})
        shown.append({name: str(value) for name, value in axes.items()} | said | {
            "accuracy": _percent(row, "accuracy"), "of source": _percent(row, "source_accuracy"), "flips": _percent(row, "disagreement"),
            "p50": _figure(row, "logit_diff_p50"), "p99": _figure(row, "logit_diff_p99"), "max": _figure(row, "logit_diff_max"),
            "tolerance": _figure(row, "parity_tolerance"), "KB": _figure(row, "model_size_bytes", 1e-3),
            "searched": _percent(row, "search_found_share"), "at random": _percent(row, "search_random_share"),
            "because": row.tags.get("parity_reason", ""),
        })
    notes = [
        "Accuracy and flips (answers that differ from the source's) in percent. Differences are of logits; the tolerance is for the "
        "largest one of a float row, and for the 99th percentile of an integer row. Searched: from how many test images a search led to "
        "an input on which source and conversion disagree, and as many changes at random.",
    ]
    return Sheet("deployments", "Deployed models against their sources", data, shown, notes)


def matrix(rows: Sequence[CellRecord]) -> Sheet:
    """A line for each framework, runtime and quantization, a column for each network: the worst verdict, or the class of a failure. Reasons
    of failures and skips are in a table of their own. Of the data set's own inputs: corrupted ones may leave a sound model's ranges."""
    networks = list(dict.fromkeys(_network(row) for row in rows if is_deployed(row)))
    lines: dict[tuple[str, ...], dict[str, list[CellRecord]]] = {}
    for row in rows:
        if is_deployed(row) and row.params.get("attack") == NO_ATTACK and row.params.get("corruption", NO_CORRUPTION) == NO_CORRUPTION:
            at = (framework_of(row), runtime_of(row), str(row.params["quantization"]))
            lines.setdefault(at, {}).setdefault(_network(row), []).append(row)
    data = [
        dict(zip(("framework", "runtime", "quantization"), at, strict=True))
        | {network: worst(found[network]) if network in found else "" for network in networks}
        for at, found in lines.items()
    ]
    return Sheet("matrix", "Verdicts by framework, runtime and network", data, data)


def worst(rows: Sequence[CellRecord]) -> str:
    """The worst verdict of some rows, with what was diagnosed; else the class of a failure, or that they were skipped."""
    failed = [row for row in rows if row.tags["status"] == FAILED]
    judged = [row for row in rows if row.tags.get("parity") in VERDICTS]
    if failed and not any(row.tags["parity"] in WRONG for row in judged):
        return failed[0].tags["failure_class"]
    if not judged:
        return "skipped" if any(row.tags["status"] == SKIPPED for row in rows) else "not judged"
    found = max(judged, key=lambda row: VERDICTS.index(row.tags["parity"]))
    told = found.tags.get("deployed_diagnosis", "")
    return found.tags["parity"] + (f" ({told})" if told and not told.startswith("not run") else "")


def flips(rows: Sequence[CellRecord], changed: Mapping[str, Sequence[Flip]]) -> Sheet:
    """The inputs that conversions of a model changed, a line for each input of each source, those that most of them changed first.

    `changed` has a conversion's flips by the key of its row.
    """
    lines: dict[tuple[Any, ...], dict[str, str]] = {}
    known: dict[tuple[Any, ...], Flip] = {}
    of_source: dict[tuple[Any, ...], int] = {}
    for row in rows:
        source = tuple(row.params.get(name) for name in SOURCE)
        if row.tags["status"] == OK and is_deployed(row) and row.params.get("attack") == NO_ATTACK:
            of_source[source] = of_source.get(source, 0) + 1
        for flip in changed.get(row.key, ()):
            at = (*source, flip.index)
            known[at] = flip
            lines.setdefault(at, {})[f"{runtime_of(row)} {row.params['quantization']}"] = f"{flip.after} (margin {flip.margin_after:.3g})"
    data = []
    for at, after in lines.items():
        flip, source = known[at], at[:-1]
        axes = {name: value for name, value in zip(SOURCE, source, strict=True) if value is not None}
        data.append(axes | {
            "index": flip.index, "label": flip.label, "source's answer": flip.before, "source's margin": flip.margin,
            "conversions": of_source[source], "changed by": len(after), "to": "; ".join(f"{name}: {to}" for name, to in after.items()),
        })
    data.sort(key=lambda line: (-line["changed by"], line["source's margin"]))
    shown = [{name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in line.items()} for line in data]
    notes = ["The margin is the source's largest logit less its second: small ones are near the border between two classes."]
    return Sheet("flips", "Inputs that conversions changed", data, shown, notes)


def flips_between(source: "pandas.DataFrame", deployed: "pandas.DataFrame") -> list[Flip]:
    """The flips of a conversion, from outcomes.parquet of its source's evaluation and of its own."""
    both = source.merge(deployed, on=("index", "label"), suffixes=("", "_after"))
    changed = both[both["prediction"] != both["prediction_after"]]
    columns = (changed[name].tolist() for name in ("index", "label", "prediction", "margin", "prediction_after", "margin_after"))
    return [Flip(*values) for values in zip(*columns, strict=True)]


def is_deployed(row: CellRecord) -> bool:
    """Whether a row is of a converted model rather than of a framework's own, or of an operator."""
    return row.params.get("operator") is None and row.params.get("route", "") != NATIVE and row.params["runtime"] != NATIVE


def framework_of(row: CellRecord) -> str:
    """A row's framework and version; of a user's own file, that it is one."""
    if "framework" not in row.params:
        return "own file"
    return f"{row.params['framework'].partition('@')[0]} {row.params.get('framework_version', '')}".strip()


def runtime_of(row: CellRecord) -> str:
    """A row's runtime, its version and the options that are written on the axis."""
    name, settings = row.params["runtime"].partition("(")[::2]
    return f"{name.partition('@')[0]} {row.params.get('runtime_version', '')}".strip() + (f" ({settings}" if settings else "")


def _network(row: CellRecord) -> str:
    return Path(row.params["model"]).name if "model" in row.params else str(row.params.get("architecture"))


def _figure(row: CellRecord, metric: str, factor: float = 1.0, digits: str = ".3g") -> str:
    return f"{row.metrics[metric] * factor:{digits}}" if metric in row.metrics else ""


def _percent(row: CellRecord, metric: str) -> str:
    return _figure(row, metric, SHARES, ".2f")
