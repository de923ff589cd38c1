"""What a sweep prints before and after: the plan, the table of the cells, and how to open MLflow on it."""

import csv
import io
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from sweep.axes import AXES
from sweep.ledger import StoreAddress
from sweep.plan import Plan
from sweep.progress import Costs, duration
from sweep.records import FAILED, OK, SKIPPED, CellRecord, Finished

SHOWN_ROWS = 200
REASONS = 12


class Figure(NamedTuple):
    """A column of the table at the end."""

    title: str
    metric: str
    digits: int
    factor: float = 1.0


FIGURES = (
    Figure("accuracy", "accuracy", 4), Figure("flips", "disagreement", 4),
    Figure("attacked", "attack_clean_accuracy", 3), Figure("robust", "robust_accuracy", 3),
    Figure("searched", "search_found_share", 3),
    Figure("p50 ms", "latency_p50_ms", 4), Figure("ratio", "latency_ratio", 2), Figure("KB", "model_size_bytes", 0, 1e-3),
    Figure("right", "probes_right", 0), Figure("wrong", "probes_wrong", 0), Figure("unsupported", "probes_unsupported", 0),
    Figure("crashed", "probes_crashed", 0),
)
WORDS = ("route", "status", "parity", "access", "attack_flags", "found")
FINDINGS = ("diagnosis", "deployed_diagnosis", "training", "faults")
"""Tags that say what was found out; shown where that is something."""

NOTHING_FOUND = ("", "no fault", "not run")


def print_plan(console: Console, name: str, plan: Plan, usable: Mapping[str, Finished], costs: Costs, slots: int) -> None:
    """Cells, distinct stages by kind, skipped cells by reason, and the expected cost where earlier runs tell."""
    skipped = Counter(planned.reason for planned in plan.cells if planned.reason is not None)
    console.print(f"sweep {name}: {len(plan.cells)} cells, {skipped.total()} of them skipped")
    kinds = Counter(stage.kind for stage in plan.stages.values())
    done = Counter(plan.stages[key].kind for key in usable)
    lost = _without_input(plan, usable)
    barred = Counter(plan.stages[key].kind for key in lost)
    for kind, count in kinds.items():
        told = f", {barred[kind]} rest on a failed stage" if barred[kind] else ""
        console.print(f"  {kind}: {count} distinct, {done[kind]} done before, {count - done[kind] - barred[kind]} new{told}")
    for reason, count in skipped.most_common(REASONS):
        console.print(f"  skipped {count}: {reason}", soft_wrap=True)
    if len(skipped) > REASONS:
        console.print(f"  and {len(skipped) - REASONS} more reasons")
    left = [stage for key, stage in plan.stages.items() if key not in usable and key not in lost]
    if not plan.stages:
        console.print("  nothing can run: every cell is skipped")
        return
    if not left:
        console.print("  nothing new: every stage that can run was done before")
        return
    seconds = costs.remaining(left, slots)
    unknown = sorted({stage.kind for stage in left if costs.of(stage) is None})
    told = f"about {duration(seconds)}" if seconds is not None else "unknown, nothing like it has run in this store"
    console.print(f"  expected cost: {told}" + (f" and what {', '.join(unknown)} take" if unknown and seconds is not None else ""))


def _without_input(plan: Plan, usable: Mapping[str, Finished]) -> set[str]:
    """Stages that won't run, since one that they rest on has failed for good."""
    failed = {key for key, record in usable.items() if record.status == FAILED}
    return {key for key in plan.stages.keys() - usable.keys() if not failed.isdisjoint(plan.upstream(key))}


def plan_table(plan: Plan, usable: Mapping[str, Finished]) -> dict[str, Any]:
    """The plan as JSON: stages with what they read, cells with their stages or the reason why not."""
    stages = [
        {"key": key, "kind": stage.kind, "label": stage.label, "inputs": dict(stage.inputs), "done_before": key in usable}
        for key, stage in plan.stages.items()
    ]
    cells = [{"key": cell.key, **cell.cell.axes(), "reason": cell.reason, "stages": dict(cell.stages)} for cell in plan.cells]
    return {"stages": stages, "cells": cells}


def skipped_table(rows: Sequence[CellRecord]) -> str:
    """Skipped cells as CSV: the axes and the reason."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*AXES, "reason"])
    writer.writerows([*(row.params.get(axis, "") for axis in AXES), row.tags["reason"]] for row in rows)
    return text.getvalue()


def print_end(
    console: Console, name: str, rows: Collection[CellRecord], counts: Mapping[str, int], new_rows: int, total: int,
    store: StoreAddress, experiment: str, spooled: int,
) -> None:
    """The table of the cells and the line that opens MLflow on it."""
    _print_rows(console, [row for row in rows if row.tags["status"] != SKIPPED])
    undecided = total - len(rows)
    parts = [f"{counts[status]} {status}" for status in (OK, FAILED, SKIPPED)] + ([f"{undecided} not decided"] if undecided else [])
    news = f"{new_rows} rows are new" if new_rows else "nothing new"
    console.print(f"sweep {name}: {', '.join(parts)}; {news}")
    if spooled:
        message = f"MLflow could not be reached: {spooled} writes wait in {store.folder}, and the next start delivers them"
        console.print(message, style="red", soft_wrap=True)
    for source in sorted({f"{row.params['dataset']} from {row.tags['dataset_source']}" for row in rows if "dataset_source" in row.tags}):
        console.print(f"data:     {source}")
    server = store.tracking_uri
    if server.startswith("sqlite:"):
        server = "http://127.0.0.1:5000"
        console.print(f"compare:  mlflow ui --backend-store-uri {shlex.quote(store.tracking_uri)}", soft_wrap=True)
    page = f"{server}/#/experiments/{experiment}/runs"
    console.print(f"          {page}, and there the [+] of {name}: its rows are the cells", soft_wrap=True)


def _print_rows(console: Console, rows: Sequence[CellRecord]) -> None:
    """One line a cell; axes that have one value all through, and figures that no cell has, are left out."""
    if not rows:
        return
    axes = [axis for axis in AXES if len({row.params.get(axis) for row in rows}) > 1]
    words = [name for name in WORDS if any(_word(row, name) for row in rows)]
    figures = [figure for figure in FIGURES if any(figure.metric in row.metrics for row in rows)]
    table = Table(box=None, pad_edge=False)
    for column in (*axes, *words):
        table.add_column(column)
    for figure in figures:
        table.add_column(figure.title, justify="right")
    for row in rows[:SHOWN_ROWS]:
        told = [*(row.params.get(axis, "") for axis in axes), *(_word(row, name) for name in words)]
        table.add_row(*map(str, told), *(_number(row, figure) for figure in figures))
    console.print(table)
    if len(rows) > SHOWN_ROWS:
        console.print(f"and {len(rows) - SHOWN_ROWS} more; MLflow has them all")


def _word(row: CellRecord, name: str) -> str:
    if name == "route":
        return str(row.params.get("route", ""))
    if name == "status" and row.tags["status"] == FAILED:
        return row.tags["failure_class"]
    if name == "found":
        told = [row.tags[tag] for tag in FINDINGS if row.tags.get(tag, "").partition(",")[0] not in NOTHING_FOUND]
        return "; ".join(told)
    if name == "attack_flags":
        return ", ".join(flag.partition(":")[0] for flag in row.tags.get(name, "").split("; "))
    return row.tags.get(name, "")


def _number(row: CellRecord, figure: Figure) -> str:
    return f"{row.metrics[figure.metric] * figure.factor:.{figure.digits}f}" if figure.metric in row.metrics else ""
