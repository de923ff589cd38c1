"""What a process started ends with it, also where it was killed: `python -m sweep.lifeline MARK` ends what is tied once its input closes.

Ray's processes notice by themselves that their driver was killed, but some of them after a minute, and the machine is not free until then.
What is tied is known by a variable in its environment, and since a process that changes its title may overwrite that, what is there at
the end of the block is also known by its number.
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

from sweep.worker.guard import descendants, has_variable

VARIABLE = "SWEEP_LIFELINE"

_ties: list[subprocess.Popen[bytes]] = []
"""Kept for as long as this process lives: the input of each closes with it."""


@contextlib.contextmanager
def tied() -> Iterator[None]:
    """Processes that are started within the block, and what comes of them, end when this process does."""
    mark = secrets.token_hex(8)
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    tie = subprocess.Popen([sys.executable, "-m", "sweep.lifeline", mark], stdin=subprocess.PIPE, env=environment, start_new_session=True)
    _ties.append(tie)
    os.environ[VARIABLE] = mark
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        assert tie.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed; Ray's own ways are left
            tie.stdin.write(b"all there\n")
            tie.stdin.flush()


def main(mark: str) -> None:
    known = _known(os.getppid(), mark) if sys.stdin.readline() else {}
    sys.stdin.read()
    while left := [pid for pid in _all() if has_variable(pid, VARIABLE, mark) or (pid in known and known[pid] == _started(pid))]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _known(owner: int, mark: str) -> dict[int, str]:
    """The owner's descendants that have the mark, or an ancestor with it, each with when it was started, since numbers are used again."""
    marked = [pid for pid in descendants(owner) if has_variable(pid, VARIABLE, mark)]
    return {pid: _started(pid) for above in marked for pid in (above, *descendants(above))}


def _all() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _started(pid: int) -> str:
    """In clock ticks since the machine's start; "" for a process that is gone."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]


if __name__ == "__main__":
    main(sys.argv[1])
