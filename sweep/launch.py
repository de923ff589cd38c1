"""The command: `python -m sweep.launch CONFIG [key=value ...] [--plan] [--address ADDRESS]`.

Exit status 0: every cell is ok, or skipped with a reason. 1: some failed, or a record is not in MLflow yet. 2: bad input, nothing
was started. 130: interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sweep import config, driver
from sweep.errors import BrokenOff, SweepError
from sweep.interrupts import terminated_as_interrupt

OK_STATUS, FAILED_STATUS, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
WIDTH_OF_A_FILE = 220  # columns, where the output is no terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_intermixed_args(arguments)  # overrides may follow --plan too
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
    try:
        with terminated_as_interrupt():
            sweep = config.load(options.config, options.overrides)
            outcome = driver.run(sweep, options.address, options.plan, console)
    except SweepError as error:
        print(f"sweep: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenOff as error:
        print(f"sweep: {error}; the same command goes on from here", file=sys.stderr)
        return FAILED_STATUS
    except KeyboardInterrupt:
        console.print("Interrupted; the same command goes on from here.")
        return INTERRUPTED
    if outcome.interrupted:
        console.print("Interrupted; the same command goes on from here.")
        return INTERRUPTED
    return FAILED_STATUS if outcome.failed or outcome.spooled else OK_STATUS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sweep.launch", description="Run a sweep, or go on with one.", allow_abbrev=False)
    parser.add_argument("config", type=Path, help="the sweep's YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="values in place of the file's, such as train.epochs=1")
    parser.add_argument("--plan", action="store_true", help="print cells, stages, skips and the expected cost, and stop")
    parser.add_argument("--address", help="join the Ray cluster at this address instead of starting a private one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
