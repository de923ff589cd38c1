"""The command: its arguments, its exit status and what it says."""

import os
import signal

import pytest

from sweep import driver, launch
from sweep.driver import Outcome
from sweep.errors import BrokenOff, StoreBusy


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("name: test\ngrid: {framework: [fake], dataset: [synthetic], architecture: [linear]}\n")
    return str(path)


@pytest.fixture
def ran(monkeypatch):
    """What the driver is asked for; `outcome` is what it gives, or raises, or does."""

    class Ran(list):
        outcome = Outcome(0, 0, False)

    calls = Ran()

    def run(sweep, address, plan_only, _console):
        calls.append((sweep, address, plan_only))
        if isinstance(calls.outcome, BaseException):
            raise calls.outcome
        return calls.outcome() if not isinstance(calls.outcome, Outcome) else calls.outcome

    monkeypatch.setattr(driver, "run", run)
    return calls


@pytest.mark.parametrize(("outcome", "status"), [
    (Outcome(0, 0, False), 0), (Outcome(3, 0, False), 1), (Outcome(0, 0, True), 130), (Outcome(3, 0, True), 130), (KeyboardInterrupt(), 130),
    (StoreBusy("in use"), 2), (Outcome(0, 2, False), 1), (BrokenOff("the server is gone"), 1),
])
def test_exit_statuses(config, ran, outcome, status):
    ran.outcome = outcome
    assert launch.main([config]) == status


def test_an_error_is_one_line(config, ran, capsys):
    ran.outcome = StoreBusy("the store is in use")
    launch.main([config])
    assert capsys.readouterr() == ("", "sweep: the store is in use\n")


def test_what_broke_off_says_that_it_can_go_on(config, ran, capsys):
    ran.outcome = BrokenOff("the tracker was ended")
    launch.main([config])
    assert capsys.readouterr() == ("", "sweep: the tracker was ended; the same command goes on from here\n")


@pytest.mark.parametrize("outcome", [Outcome(0, 0, True), KeyboardInterrupt()])
def test_an_interrupt_says_that_it_can_go_on(config, ran, outcome, capsys):
    ran.outcome = outcome
    launch.main([config])
    assert capsys.readouterr() == ("Interrupted; the same command goes on from here.\n", "")


def test_a_termination_is_an_interrupt(config, ran, capsys):
    """As a cluster sends it before it ends a pod."""

    def terminated():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    before = signal.getsignal(signal.SIGTERM)
    ran.outcome = terminated
    assert launch.main([config]) == 130
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("arguments", [
    ["CONFIG", "train.epochs=3", "threads=2", "--plan"],
    ["CONFIG", "--plan", "train.epochs=3", "threads=2"],
    ["--plan", "CONFIG", "train.epochs=3", "threads=2"],
    ["CONFIG", "train.epochs=3", "--plan", "threads=2"],
])
def test_overrides_and_options_in_any_order(config, ran, arguments):
    assert launch.main([config if argument == "CONFIG" else argument for argument in arguments]) == 0
    ((sweep, address, plan_only),) = ran
    assert (sweep.train.epochs, sweep.threads, address, plan_only) == (3, 2, None, True)


def test_a_cluster_to_join(config, ran):
    launch.main([config, "--address", "ray://head:10001"])
    ((_sweep, address, plan_only),) = ran
    assert (address, plan_only) == ("ray://head:10001", False)


@pytest.mark.parametrize("arguments", [[], ["CONFIG", "--plam"], ["CONFIG", "--pla"]])
def test_arguments_that_can_not_be(config, ran, arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        launch.main([config if argument == "CONFIG" else argument for argument in arguments])
    assert ended.value.code == 2
    assert ran == []
    assert "usage: python -m sweep.launch" in capsys.readouterr().err
