"""This machine, as the keys of what depends on it name it."""

import contextlib
import os
import platform
from pathlib import Path

from sweep.plan import Host


def local_host() -> Host:
    """SWEEP_HOST names a class of equal machines, such as a node pool, where the name of one machine would be too narrow."""
    return Host(os.environ.get("SWEEP_HOST", platform.node()), _cpu_model(), "gpu" if gpus() else "cpu")


def cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def gpus() -> int:
    """How many NVIDIA devices are here and not hidden."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    here = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return here if visible is None else min(here, len([name for name in visible.split(",") if name not in ("", "-1")]))


def memory_bytes() -> int:
    """Memory of this machine, or of the group of processes that this one is limited with."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(limit).read_text()))
    return min(found)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.split(":", 1)[1].strip()
    return "unknown"
