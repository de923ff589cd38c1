"""The guard by itself: it starts what it is told, ends it with all that came of it, and ends everything when its owner is gone."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORKS = '''
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
print("settled", flush=True)
time.sleep(600)
'''
"""Two processes: this one, and one that has neither its session nor a parent besides the guard."""


class Guarded:
    """A guard and what it was asked to start."""

    def __init__(self, log):
        self.log = str(log)
        self.mark = f"TEST_MARK={uuid.uuid4().hex}"
        environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)} | dict([self.mark.split("=")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sweep.worker.guard"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,
        )

    def ask(self, verb, value):
        self.process.stdin.write(json.dumps({verb: value}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, *command):
        environment = dict(os.environ) | dict([self.mark.split("=")])
        return self.ask("start", {"command": command, "environment": environment, "log": self.log})

    def below(self):
        """How many processes of it live, itself left out."""
        found = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    own = b"sweep.worker.guard" in (entry / "cmdline").read_bytes()
                    found += not own and self.mark.encode() in (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
        return found

    def start_forks(self):
        """FORKS, at its end."""
        before = Path(self.log).read_text().count("settled") if Path(self.log).exists() else 0
        pid = self.start(sys.executable, "-c", FORKS)["pid"]
        deadline = time.monotonic() + 20
        while Path(self.log).read_text().count("settled") == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return pid

    def falls_to(self, count):
        """Whether so few live soon."""
        deadline = time.monotonic() + 5
        while (found := self.below()) > count and time.monotonic() < deadline:
            time.sleep(0.02)
        return found == count


@pytest.fixture
def guard(tmp_path):
    made = Guarded(tmp_path / "log.txt")
    yield made
    made.process.stdin.close()
    made.process.wait(10)
    made.process.stdout.close()
    assert made.below() == 0


def test_a_worker_is_started_watched_and_ended(guard):
    pid = guard.start("sleep", "600")["pid"]
    assert os.getsid(pid) == pid
    assert guard.ask("status", pid) == {"returncode": None}
    assert guard.ask("end", pid) == {"returncode": -signal.SIGKILL}
    assert guard.below() == 0


def test_how_a_worker_ended_by_itself_is_told(guard):
    pid = guard.start(sys.executable, "-c", "import sys; print('words'); sys.exit(5)")["pid"]
    deadline = time.monotonic() + 10
    while guard.ask("status", pid) == {"returncode": None} and time.monotonic() < deadline:
        time.sleep(0.02)
    assert guard.ask("status", pid) == {"returncode": 5}
    assert guard.ask("end", pid) == {"returncode": 5}
    assert Path(guard.log).read_text() == "words\n"


def test_a_command_that_is_not_there_is_an_answer(guard, tmp_path):
    assert "No such file" in guard.start("/no/such/program")["error"]
    guard.log = str(tmp_path / "no such folder" / "log.txt")
    assert "No such file" in guard.start("sleep", "600")["error"]
    guard.log = str(tmp_path / "log.txt")
    assert guard.ask("end", guard.start("sleep", "600")["pid"]) == {"returncode": -signal.SIGKILL}


def test_what_a_worker_left_behind_is_ended_with_it_and_nothing_else(guard):
    other = guard.start("sleep", "600")["pid"]
    pid = guard.start_forks()
    assert guard.below() == 3
    assert guard.ask("end", pid) == {"returncode": -signal.SIGKILL}
    assert guard.below() == 1
    assert guard.ask("status", other) == {"returncode": None}


def test_what_a_dead_worker_left_behind_is_ended_too(guard):
    pid = guard.start_forks()
    assert guard.below() == 2
    os.kill(pid, signal.SIGKILL)
    assert guard.falls_to(1)
    assert guard.ask("end", pid) == {"returncode": -signal.SIGKILL}
    assert guard.below() == 0


def test_when_the_owner_closes_everything_ends(guard):
    for _ in range(3):
        guard.start_forks()
    assert guard.below() == 6
    guard.process.stdin.close()
    assert guard.process.wait(10) == 0
    assert guard.below() == 0


def test_ctrl_c_is_the_owners_affair(guard):
    pid = guard.start("sleep", "600")["pid"]
    guard.process.send_signal(signal.SIGINT)
    assert guard.ask("status", pid) == {"returncode": None}


def test_workers_end_with_a_guard_that_is_killed(guard):
    guard.start("sleep", "600")
    guard.start("sleep", "600")
    guard.process.kill()
    guard.process.wait()
    assert guard.falls_to(0)
