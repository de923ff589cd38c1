"""Toolchains: locked environments, each with an interpreter of its own. The default one is the interpreter that runs the driver."""

import functools
import hashlib
import importlib.metadata
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGE_PARENT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Toolchain:
    """One environment. `lock` is the digest of everything that is installed in it."""

    name: str
    command: tuple[str, ...]
    lock: str

    def environment(self) -> dict[str, str]:
        """What a worker of it needs besides what every worker gets."""
        return {"PYTHONPATH": str(PACKAGE_PARENT)}


@functools.cache
def default() -> Toolchain:
    """The driver's own interpreter, as it was when first asked: reading what is installed takes a tenth of a second."""
    installed = sorted(f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions())
    lock = hashlib.sha256("\n".join([sys.version, *installed]).encode()).hexdigest()[:16]
    return Toolchain("default", (sys.executable,), lock)
