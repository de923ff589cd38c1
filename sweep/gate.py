"""The command: `python -m sweep.gate MODEL --against CONVERTED... --inputs INPUTS.npz [--budget BUDGET.yaml] [--junit REPORT.xml]`.

Checks conversions of a model file before they are shipped: against the model itself, on the same inputs, with a budget
(`sweep.budget` has what it says). It takes files, since that is what a build has at hand, and the budget is one more, to be kept
beside them. Exit status 0: all limits hold. 1: one is broken, or a conversion does not run. 2: bad input.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sweep import budget, gating, junit
from sweep.budget import Budget, Check, Limits
from sweep.errors import ConfigError, SweepError, nearest
from sweep.gating import Compared
from sweep.interrupts import terminated_as_interrupt

PASSED, BROKEN, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
WIDTH_OF_A_FILE = 200  # columns, where the output is no terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
    try:
        with terminated_as_interrupt():
            conversions = _limits(options.budget, options.against)
            if any(limits.latency_ratio is not None for limits in conversions.values()):
                print("gate: latency is measured as soon as nothing else of ours runs on this host", file=sys.stderr)
            found = gating.compare(options.model, conversions, options.inputs, options.threads)
            judged = [(each, _checks(each, limits)) for each, limits in zip(found, conversions.values(), strict=True)]
            if options.junit:
                _report(options.junit, judged)
    except SweepError as error:
        print(f"gate: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    _show(console, judged)
    return PASSED if all(_passes(each, checks) for each, checks in judged) else BROKEN


def _limits(path: Path | None, conversions: Sequence[Path]) -> dict[Path, Limits]:
    """The limits of each conversion. Raises ConfigError for a name in the budget that is none of them, or a file that stands twice."""
    chosen = budget.load(path) if path else Budget()
    names = [conversion.name for conversion in conversions]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--against: {name} stands twice; a budget tells conversions by the names of their files")
    for name in chosen.models:
        if name not in names:
            raise ConfigError(f"models: there is no conversion {name!r}{nearest(name, names)}")
    return {conversion: chosen.of(conversion.name) for conversion in conversions}


def _checks(compared: Compared, limits: Limits) -> list[Check]:
    return [] if compared.failure else budget.judge(compared.figures, limits)


def _passes(compared: Compared, checks: Sequence[Check]) -> bool:
    return not compared.failure and all(check.holds for check in checks)


def _show(console: Console, judged: Sequence[tuple[Compared, Sequence[Check]]]) -> None:
    table = Table("conversion", "runtime", "verdict", "disagreement", "accuracy", "size", "latency", "gate", box=None, pad_edge=False)
    for each, checks in judged:
        found = each.figures
        table.add_row(
            each.name, each.runtime, found.get("verdict", "does not run"), _figure(found.get("disagreement"), "{:.2%}"),
            _figure(found.get("accuracy"), "{:.2%}"), _figure(found.get("size_ratio"), "{:.2f}x"),
            _figure(found.get("latency_ratio"), "{:.2f}x"), "passed" if _passes(each, checks) else "FAILED",
        )
    console.print(table)
    for each, checks in judged:
        told = [f"{check.name}: {check.said}" for check in checks if not check.holds or check.name == "reordered_outputs"]
        for line in told or ([each.failure] if each.failure else []):
            console.print(f"{each.name}: {line}", soft_wrap=True)


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _report(path: Path, judged: Sequence[tuple[Compared, Sequence[Check]]]) -> None:
    try:
        junit.write(path, [(each.name, each.figures, checks, each.failure) for each, checks in judged])
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweep.gate", description="Check conversions of a model before they are shipped.", allow_abbrev=False
    )
    parser.add_argument("model", type=Path, help="the model that they were made of: a file, or a folder of a SavedModel")
    parser.add_argument("--against", type=Path, nargs="+", required=True, metavar="CONVERTED", help="the conversions")
    parser.add_argument("--inputs", type=Path, required=True, help="an .npz file with `inputs`, and `labels` if there are any")
    parser.add_argument("--budget", type=Path, help="a YAML file with what a conversion may cost; without it the verdict alone counts")
    parser.add_argument("--junit", type=Path, help="where to write the results as JUnit XML")
    parser.add_argument("--threads", type=int, default=1, choices=range(1, 1025), metavar="N", help="of each model; 1")
    return parser


if __name__ == "__main__":
    sys.exit(main())
