"""What a process started ends with it, also where it was killed: `python -m sweep.lifeline VALUE` ends what is tied once its input closes.

Ray's processes notice by themselves that their driver was killed, but some only after a minute, and until then a machine is not free.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sweep.worker.guard import has_variable

VARIABLE = "SWEEP_LIFELINE"

_ties: list[subprocess.Popen[bytes]] = []
"""Kept for as long as this process lives: the input of each closes with it."""


@contextlib.contextmanager
def tied() -> Iterator[None]:
    """Processes that are started within the block, and all that come of them, end when this process does."""
    value = secrets.token_hex(8)
    command = [sys.executable, "-m", "sweep.lifeline", value]
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    _ties.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True))
    os.environ[VARIABLE] = value
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def main(value: str) -> None:
    sys.stdin.read()
    while left := [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and has_variable(entry, VARIABLE, value)]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
