"""Faults performed for real, so that what the driver does about a dying worker can be tested with the fake components."""

import os
import signal
import subprocess
import sys
import time

_STEP_BYTES = 64 << 20
_BOUND_BYTES = 64 << 30


def provoke(faults, stage, seed):
    """Perform the fault that `faults` ({stage: {seed as string: kind}}) has for this stage and seed, if there is one."""
    kind = faults.get(stage, {}).get(str(seed))
    if kind is not None:
        fault(kind, seed)


def fault(kind, seed):
    """Fail in the way that `kind` names; `hang` and `hang_with_child` never return. Raises KeyError for an unknown kind."""
    FAULTS[kind](seed)


def _raise(seed):
    raise RuntimeError("fault asked for with seed {}".format(seed))


def _nan(seed):
    raise FloatingPointError("loss that is not a number asked for with seed {}".format(seed))


def _segfault(_seed):
    os.kill(os.getpid(), signal.SIGSEGV)


def _abort(_seed):
    os.abort()


def _exit(_seed):
    os._exit(3)


def _hang(_seed):
    while True:
        time.sleep(60)


def _hang_with_child(seed):
    # In a session of its own, it survives a signal to the worker's group; it ends by itself in the end.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    _hang(seed)


def _hog(_seed):
    """Take memory, every page of it written, until something stops this process; bounded in case nothing does."""
    held = []
    for _ in range(_BOUND_BYTES // _STEP_BYTES):
        held.append(bytearray(b"\1") * _STEP_BYTES)  # noqa: PERF401  # one step at a time, so that a watcher can see it grow
    raise MemoryError("{} bytes taken and nobody minded".format(_BOUND_BYTES))


FAULTS = {
    "raise": _raise,
    "nan": _nan,
    "segfault": _segfault,
    "abort": _abort,
    "exit": _exit,
    "hang": _hang,
    "hang_with_child": _hang_with_child,
    "hog": _hog,
}
