"""
What can go wrong, as a tree for errors and a table for failures.

SweepError                  one clear message for the user, exit status 2; nothing has run
├── ConfigError             the sweep file or an override is wrong
├── DataUnavailable         a data set is not there; the message says what to put where
├── StoreUnavailable        MLflow or the output folder can't be used
└── StoreBusy               another driver holds the store

BrokenOff                   the driver can't go on with work that has begun; exit status 1

StageFailed                 a stage ran and did not succeed; becomes a result, never ends a sweep
└── Raised                  the function that a worker ran raised an exception

A failure's class says whether the stage is tried again within the sweep and whether the record counts as final for later sweeps.
"""

import difflib
import signal
from collections.abc import Iterable
from typing import Any, NamedTuple


class SweepError(Exception):
    """The message is for the user as it stands."""


class ConfigError(SweepError):
    """The sweep file or an override is wrong."""


class DataUnavailable(SweepError):
    """A data set was found nowhere."""


class StoreUnavailable(SweepError):
    """The ledger can't be read or written."""


class StoreBusy(SweepError):
    """Another driver writes to this store."""


class BrokenOff(Exception):
    """The driver can't go on; what is recorded stays."""


class StageFailed(Exception):
    """A stage did not succeed. `failure_class` is a key of FAILURE_CLASSES, `message` one line."""

    def __init__(self, failure_class: str, message: str):
        super().__init__(message)
        self.failure_class = failure_class
        self.message = message


class Raised(StageFailed):
    """The function that a worker ran raised an exception; `kind` is its type's name. The worker lives on."""

    def __init__(self, kind: str, message: str, traceback: str):
        super().__init__("", f"{kind}: {message}")
        self.kind = kind
        self.traceback = traceback


class Policy(NamedTuple):
    """How a class of failures is treated."""

    retries: int  # further attempts within one sweep
    final: bool  # whether a later sweep takes the record for the stage's outcome


FAILURE_CLASSES = {
    # the environment was at fault: tried again, never final
    "env_unavailable": Policy(1, False),
    "data_unavailable": Policy(0, False),
    "preempted": Policy(3, False),
    "tracking_failed": Policy(1, False),
    "timeout": Policy(1, False),
    "oom_host": Policy(0, False),
    "oom_gpu": Policy(0, False),
    "internal": Policy(1, False),
    # the stage's own outcome: final until its inputs or its sources change
    "train_failed": Policy(0, True),
    "diverged": Policy(0, True),
    "transplant_failed": Policy(0, True),
    "convert_failed": Policy(0, True),
    "load_failed": Policy(0, True),
    "inference_failed": Policy(0, True),
    "measure_failed": Policy(0, True),
    "attack_failed": Policy(0, True),
    "diagnose_failed": Policy(0, True),
    "corrupt_failed": Policy(0, True),
    "crash_signal": Policy(0, True),
    # follows from another stage's failure; decided anew by the graph each time
    "upstream_failed": Policy(0, False),
}


def policy_of(failure_class: str) -> Policy:
    """The policy of a class; one that an older version recorded and this one does not know is no outcome."""
    return FAILURE_CLASSES.get(failure_class, Policy(0, False))


STAGE_FAILURE = {
    "train": "train_failed",
    "transplant": "transplant_failed",
    "convert": "convert_failed",
    "evaluate": "inference_failed",
    "measure": "measure_failed",
    "attack": "attack_failed",
    "diagnose": "diagnose_failed",
    "trace": "train_failed",
    "compare": "diagnose_failed",
    "simulate": "diagnose_failed",
    "search": "diagnose_failed",
    "probe": "diagnose_failed",
    "adopt": "load_failed",
    "corrupt": "corrupt_failed",
}
"""The class of an ordinary exception, by the kind of stage that raised it."""

_RAISED_BY_CODE = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS}


def class_of_death(returncode: int | None) -> tuple[str, str]:
    """Failure class and message of a worker that ended in the middle of a stage.

    Signals that code raises by itself are the stage's own crash; SIGKILL and SIGTERM come from outside (an operator, the
    kernel's memory killer, a lost node), so the stage deserves another attempt.
    """
    if returncode is None or returncode >= 0:
        return "crash_signal", f"the worker exited with status {returncode} in the middle of the stage"
    name = signal.Signals(-returncode).name
    if signal.Signals(-returncode) in _RAISED_BY_CODE:
        return "crash_signal", f"the worker was ended by {name}"
    return "preempted", f"the worker was ended from outside by {name}"


def nearest(word: str, valid: Iterable[Any]) -> str:
    """What to say after a wrong word: the nearest valid one, and all of them where they are few."""
    valid = [str(v) for v in valid]
    close = difflib.get_close_matches(str(word), [v for v in valid if str(word) in v] or valid, 1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; valid: {', '.join(valid)}" if len(valid) <= 20 else ""
