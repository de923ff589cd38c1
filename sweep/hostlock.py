"""One measurement at a time on a host, and nothing else of ours beside it: a lock that every driver on the host shares."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(exclusive: bool) -> Iterator[None]:
    """Hold the host's lock, shared for ordinary stages, alone for a measurement. The kernel frees it when the process is gone."""
    path = Path(tempfile.gettempdir()) / f"sweep-{os.getuid()}.lock"
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
