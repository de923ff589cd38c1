"""What a killed process had tied to itself ends, and nothing else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWNER = """
import subprocess, time
from sweep import lifeline

free = subprocess.Popen(["sleep", "600"])
with lifeline.tied():
    tied = subprocess.Popen(["sh", "-c", "env -i sleep 601 & echo $! & wait"], stdout=subprocess.PIPE, text=True)
    below = tied.stdout.readline().strip()
later = subprocess.Popen(["sleep", "600"])
print(free.pid, later.pid, tied.pid, below, flush=True)
time.sleep(600)
"""
"""One process that was tied, and one below it whose environment does not say so any more, as that of one that changed its title."""


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("end", [subprocess.Popen.kill, subprocess.Popen.terminate])
def test_what_is_tied_ends_with_its_owner(end):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        free, later, tied, below = [int(word) for word in owner.stdout.readline().split()]
        time.sleep(1)  # the other side is told of them, and looks
        assert all(map(lives, (free, later, tied, below)))
        end(owner)
        owner.wait()
        deadline = time.monotonic() + 5
        while (lives(tied) or lives(below)) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = [pid for pid in (free, later, tied, below) if lives(pid)]
        for pid in (free, later):
            os.kill(pid, signal.SIGKILL)
        assert left == [free, later]
