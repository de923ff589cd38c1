"""What a machine is found to have."""

import os
from pathlib import Path

import pytest

from sweep import host


@pytest.mark.parametrize(("visible", "count"), [(None, 3), ("", 0), ("-1", 0), ("1", 1), ("0,2", 2), ("0,1,2,3", 3)])
def test_gpus_that_are_here_and_not_hidden(monkeypatch, visible, count):
    monkeypatch.setattr(host, "Path", lambda _folder: Found())
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert host.gpus() == count


class Found:
    """A folder of devices."""

    def glob(self, _pattern):
        return [Path(f"/dev/nvidia{number}") for number in range(3)]


def test_cpus_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {1, 5, 7})
    assert host.cpus() == 3


def test_memory_is_no_more_than_the_machine_has():
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:")]
    assert 0 < host.memory_bytes() <= int(line.split()[1]) * 1024
