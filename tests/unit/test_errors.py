"""How a worker that ended is judged."""

import pickle
import signal

import pytest

from sweep import errors
from sweep.schema import StageSeconds


@pytest.mark.parametrize(("returncode", "failure_class", "words"), [
    (-signal.SIGSEGV, "crash_signal", "ended by SIGSEGV"),
    (-signal.SIGABRT, "crash_signal", "ended by SIGABRT"),
    (-signal.SIGFPE, "crash_signal", "ended by SIGFPE"),
    (-signal.SIGILL, "crash_signal", "ended by SIGILL"),
    (-signal.SIGBUS, "crash_signal", "ended by SIGBUS"),
    (-signal.SIGKILL, "preempted", "from outside by SIGKILL"),
    (-signal.SIGTERM, "preempted", "from outside by SIGTERM"),
    (0, "crash_signal", "exited with status 0 in the middle"),
    (3, "crash_signal", "exited with status 3 in the middle"),
])
def test_the_class_of_a_death(returncode, failure_class, words):
    found, message = errors.class_of_death(returncode)
    assert found == failure_class
    assert words in message


def test_every_kind_of_stage_has_a_class_for_an_ordinary_exception():
    assert errors.STAGE_FAILURE.keys() == StageSeconds.model_fields.keys()  # every kind of stage
    for name in errors.STAGE_FAILURE.values():
        assert errors.FAILURE_CLASSES[name] == (0, True)


def test_what_is_tried_again_is_never_final():
    assert not [name for name, policy in errors.FAILURE_CLASSES.items() if policy.retries and policy.final]


def test_a_fault_of_the_program_is_tried_once_more_and_never_final():
    assert errors.policy_of("internal") == (1, False)


@pytest.mark.parametrize("name", ["unstable", "device_unavailable"])
def test_a_class_that_an_older_version_recorded_is_no_outcome(name):
    assert name not in errors.FAILURE_CLASSES
    assert errors.policy_of(name) == (0, False)


def test_errors_reach_another_process_as_they_are():
    for error in (errors.StoreBusy("in use"), errors.ConfigError("a: b"), errors.DataUnavailable("none")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))
        assert isinstance(copy, errors.SweepError)
