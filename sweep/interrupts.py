"""Ctrl-C and SIGTERM: one stops a sweep cleanly, and nothing stops the cleaning up."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM, which a cluster sends before it ends a pod, stops a sweep as Ctrl-C does."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Ignore further interrupts for the length of the block."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
