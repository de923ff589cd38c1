"""One measurement at a time on a host, and nothing else of ours beside it: a lock that every driver on the host shares."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(exclusive: bool) -> Iterator[None]:
    """Hold the host's lock, shared for ordinary stages, alone for a measurement. The kernel frees it when the process is gone.

    A measurement that waits holds the gate that everyone goes through, so stages that come later queue behind it. Raises OSError where
    another user's file is in the lock's place.
    """
    with _file("gate") as gate, _file("lock") as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@contextlib.contextmanager
def _file(name: str) -> Iterator[int]:
    path = Path(tempfile.gettempdir()) / f"sweep-{os.getuid()}.{name}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise OSError(f"{path} belongs to another user")
        yield descriptor
    finally:
        os.close(descriptor)
