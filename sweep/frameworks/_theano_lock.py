"""Theano's compile lock, held by the kernel.

Theano guards its folder of compiled code by a file that waiting processes poll once in some seconds, and a process keeps it while it makes
a whole function. So one that finds all it needs compiled may wait for minutes beside another that goes on compiling, and the file of a
killed one has to time out. A lock of the kernel wakes who waits, and ends with its process; held for one module at a time, it lets
processes take turns. These are the functions of Theano 1.0.5, which is the last Theano.
"""

import fcntl
import os
from contextlib import contextmanager

from theano.gof import compilelock

_held = []  # the file descriptor, while this process has the lock


def install():
    """From now on this process takes the kernel's lock in the place of Theano's."""
    compilelock.lock = _acquire
    compilelock.lock_ctx = _for_one_module
    compilelock.refresh_lock = lambda _file: None  # it does not time out
    compilelock.Unlocker.unlock = _release


def _acquire(folder, **_waiting):
    """Blocks. `folder` is what Theano's own lock would create beside the compiled code."""
    descriptor = os.open(folder + ".flock", os.O_CREAT | os.O_RDWR, 0o600)  # which g++ does not inherit
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _held.append(descriptor)


def _release(_unlocker, force=False):
    while _held:
        os.close(_held.pop())


@contextmanager
def _for_one_module(lock_dir=None, keep_lock=False, **waiting):
    """Theano would keep the lock of the first module for all the others of a function."""
    compilelock.get_lock(lock_dir=lock_dir, **waiting)
    try:
        yield
    finally:
        compilelock.release_lock()
