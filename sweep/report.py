"""The command: `python -m sweep.report CONFIG_OR_NAME [--store URI] [--out FOLDER] [--paper FILE]`.

Reads MLflow and nothing else of a sweep: prints its tables, and writes them as `report.md` and one CSV each. Exit status 0; 2: bad input.
"""

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from sweep import config, paper
from sweep.deployment import flips_between, is_deployed
from sweep.errors import ConfigError, SweepError, nearest
from sweep.launch import BAD_INPUT, OK_STATUS, WIDTH_OF_A_FILE
from sweep.records import FAILED, OK, SKIPPED, CellRecord
from sweep.schema import Store
from sweep.sheet import Sheet
from sweep.sheets import disagrees_with_master, sheets
from sweep.statistics import Answers, McNemar, mcnemar

if TYPE_CHECKING:
    import pandas

SHOWN_ROWS = 60


class Subject(NamedTuple):
    """What a report is about: the sweep, where its rows are, and the paper that it stands beside."""

    sweep: str
    store: str
    paper: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
    try:
        report(_subject(options), options.out, console)
    except SweepError as error:
        print(f"sweep: {error}", file=sys.stderr)
        return BAD_INPUT
    return OK_STATUS


def report(subject: Subject, out: Path | None, console: Console) -> None:
    """Print the tables of a sweep and write them to a folder (None: below `mlruns/reports`). Raises SweepError."""
    beside = None if subject.paper is None else paper.load(subject.paper)
    from sweep import recorded as store  # late: MLflow takes seconds to load, and a wrong file is told before

    if subject.sweep not in (known := store.sweeps(subject.store)):
        hint = nearest(subject.sweep, known) if known else "; it has none"
        raise ConfigError(f"there is no sweep {subject.sweep!r} in {subject.store}{hint}")
    recorded = store.read_sweep(subject.store, subject.sweep)
    counts = {status: sum(row.tags["status"] == status for row in recorded.rows) for status in (OK, FAILED, SKIPPED)}
    heading = f"{subject.sweep}: " + ", ".join(f"{n} {status}" for status, n in counts.items())
    if (unlisted := int(recorded.counts.get("cells_skipped", 0)) - counts[SKIPPED]) > 0:
        heading += f", and {unlisted} skipped that skipped.csv of the sweep's run lists"
    if not recorded.counts:
        heading += "; it has not ended: it runs, was broken off, or never began"
    splits = {row.key: _split(row, store.evaluations(subject.store, row)) for row in recorded.rows if disagrees_with_master(row)}
    changed = {
        row.key: flips_between(*store.evaluations(subject.store, row)[-2:])  # its source's, and its own
        for row in recorded.rows if row.metrics.get("disagreement", 0.0) > 0 and row.tags["status"] == OK and is_deployed(row)
    }
    probed = {
        row.key: store.probes(subject.store, row) for row in recorded.rows if "operator" in row.params and row.tags["status"] == OK
    }
    attacked = {
        row.key: store.attacked(subject.store, row) for row in recorded.rows if "access" in row.tags and row.tags["status"] == OK
    }
    made = sheets(recorded.rows, beside, splits, changed, probed, attacked)
    folder = out or Path("mlruns") / "reports" / subject.sweep
    try:
        _write(made, heading, folder)
    except OSError as error:
        raise ConfigError(f"--out: the report can't be written to {folder}: {error.strerror}") from None
    console.print(heading, soft_wrap=True)
    for sheet in made:
        if sheet.shown:
            _print(console, sheet)
    console.print(f"\nreport:   {folder / 'report.md'}, and its tables as CSV beside it", soft_wrap=True)


def _split(row: CellRecord, evaluated: "Sequence[pandas.DataFrame]") -> McNemar:
    """The master's answers against those of the model that carries its weights."""
    master, copy = (
        Answers(row.stages[0], outcomes["index"].tolist(), (outcomes["prediction"] == outcomes["label"]).tolist())
        for outcomes in (evaluated[0], evaluated[-1])
    )
    return mcnemar(master, copy)


def _subject(options: argparse.Namespace) -> Subject:
    named = Path(options.sweep)
    if named.suffix not in (".yaml", ".yml"):
        return Subject(options.sweep, options.store or Store().tracking_uri, options.paper)
    sweep = config.load(named)
    beside = options.paper or (Path(sweep.paper) if sweep.paper else None)
    return Subject(sweep.name, options.store or sweep.store.tracking_uri, beside)


def _write(made: Sequence[Sheet], heading: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"# {heading}"]
    for sheet in made:
        if sheet.shown:
            parts += [f"## {sheet.title}", *sheet.notes, _markdown(sheet)]
        with (folder / f"{sheet.name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, _columns(sheet.data))
            writer.writeheader()
            writer.writerows(sheet.data)
    (folder / "report.md").write_text("\n\n".join(parts) + "\n")


def _markdown(sheet: Sheet) -> str:
    columns = _columns(sheet.shown)
    lines = [[line.get(column, "").replace("|", "\\|").replace("\n", " ") for column in columns] for line in sheet.shown]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [columns, ["---"] * len(columns), *lines])


def _print(console: Console, sheet: Sheet) -> None:
    console.print(f"\n{sheet.title}", style="bold")
    for note in sheet.notes:
        console.print(note, style="dim")
    columns = _columns(sheet.shown)
    constant = [column for column in columns if len({line.get(column, "") for line in sheet.shown}) == 1] if len(sheet.shown) > 1 else []
    if constant and any(sheet.shown[0][column] for column in constant):
        console.print("all: " + ", ".join(f"{column} {sheet.shown[0][column]}" for column in constant if sheet.shown[0][column]))
    table = Table(box=None, pad_edge=False)
    for column in columns:
        if column not in constant:
            table.add_column(column)
    for line in sheet.shown[:SHOWN_ROWS]:
        table.add_row(*(line.get(column, "") for column in columns if column not in constant))
    console.print(table)
    if len(sheet.shown) > SHOWN_ROWS:
        console.print(f"and {len(sheet.shown) - SHOWN_ROWS} more; report.md has them all")


def _columns(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every column that a line has, in the order of their first lines."""
    return list(dict.fromkeys(column for line in lines for column in line))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sweep.report", description="What a sweep found, from MLflow.", allow_abbrev=False)
    parser.add_argument("sweep", metavar="CONFIG_OR_NAME", help="the sweep's YAML file (.yaml or .yml), or its name")
    parser.add_argument("--store", metavar="URI", help="where MLflow keeps runs, in place of the file's store.tracking_uri")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where report.md and the CSV files go; else mlruns/reports/NAME")
    parser.add_argument("--paper", type=Path, metavar="FILE", help="a paper's numbers to stand beside, in place of the sweep's own `paper`")
    return parser


if __name__ == "__main__":
    sys.exit(main())
