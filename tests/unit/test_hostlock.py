"""Who waits for whom on a host; each thread has lock files of its own, as each process has."""

import contextlib
import fcntl
import os
import tempfile
import threading
import time

import pytest

from sweep import hostlock

SECONDS = 10


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class Holder:
    """Holds the lock in a thread from when it gets it until it is let go."""

    def __init__(self, exclusive):
        self.has, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(exclusive,), daemon=True)
        self._thread.start()

    def _hold(self, exclusive):
        with hostlock.held(exclusive):
            self.has.set()
            self._go.wait(SECONDS)

    def end(self):
        self._go.set()
        self._thread.join(SECONDS)


def shut(folder):
    """Wait until someone stands in the gate."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError), (folder / f"sweep-{os.getuid()}.gate").open() as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        time.sleep(0.01)
    return False


def test_ordinary_stages_run_beside_each_other():
    holders = [Holder(exclusive=False) for _ in range(3)]
    assert all(holder.has.wait(SECONDS) for holder in holders)
    for holder in holders:
        holder.end()


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_measurement_runs_alone(exclusive):
    measurement = Holder(exclusive=True)
    assert measurement.has.wait(SECONDS)
    other = Holder(exclusive)
    assert not other.has.wait(0.2)
    measurement.end()
    assert other.has.wait(SECONDS)
    other.end()


def test_what_comes_after_a_measurement_that_waits_queues_behind_it(folder):
    earlier = Holder(exclusive=False)
    assert earlier.has.wait(SECONDS)
    measurement = Holder(exclusive=True)
    assert shut(folder)
    later = Holder(exclusive=False)
    assert not later.has.wait(0.2)  # though what runs would let it in
    earlier.end()
    assert measurement.has.wait(SECONDS)
    assert not later.has.wait(0.2)
    measurement.end()
    assert later.has.wait(SECONDS)
    later.end()
