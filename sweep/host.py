"""This machine, as the keys of what depends on it name it."""

import os
import platform
from pathlib import Path

from sweep.plan import Host


def local_host() -> Host:
    """SWEEP_HOST names a class of equal machines, such as a node pool, where the name of one machine would be too narrow."""
    return Host(os.environ.get("SWEEP_HOST", platform.node()), _cpu_model(), "gpu" if _gpus() else "cpu")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.split(":", 1)[1].strip()
    return "unknown"


def _gpus() -> bool:
    """Whether an NVIDIA device is here and not hidden."""
    return any(Path("/dev").glob("nvidia[0-9]*")) and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
