"""The guard: a small process that starts workers for an owner and sees to it that none outlives it.

`python -m sweep.worker.guard` reads one JSON request a line and answers in one line each:

    {"start": {"command": [...], "environment": {...}, "log": path}}   -> {"pid": n} or {"error": why it can't be}
    {"status": pid}                                                    -> {"returncode": n or null}
    {"end": pid}                                                       -> {"returncode": n}

The guard is a subreaper (prctl PR_SET_CHILD_SUBREAPER), so whatever a worker leaves behind, also from a session of its own, becomes
its child and is ended with the worker. When the owner is gone the input closes, and everything below the guard is ended. Workers
get PR_SET_PDEATHSIG from the guard, which has one thread only, so they do not outlive it either; a worker that the owner starts
itself could not have that, since its actor runs each call in a thread of its own.

It is two processes. A Ray actor that exits kills its children first, which would leave nobody to end what workers have started in
sessions of their own; the outer process takes that blow, and the inner one ends everything then.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MARK = "SWEEP_WORKER_MARK"


def main():
    libc = ctypes.CDLL(None, use_errno=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches a terminal's whole group; the owner decides what ends
    outer = os.getpid()
    if os.fork():
        os.wait()
        return
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit())
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the guard can't become a subreaper")
    workers = {}
    try:
        for line in sys.stdin if os.getppid() == outer else ():
            ((verb, value),) = json.loads(line).items()
            print(json.dumps(_VERBS[verb](workers, libc, value)), flush=True)
    finally:
        _end_all()


def _start(workers, libc, value):
    mark = os.urandom(8).hex()

    def before_exec():
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    try:
        with open(value["log"], "ab") as log:
            process = subprocess.Popen(
                value["command"], env=dict(value["environment"], **{MARK: mark}), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=before_exec,
            )
    except OSError as error:  # a toolchain without its interpreter must not end the workers of the others
        return {"error": str(error)}
    _prefer_for_memory_killer(process.pid)
    workers[process.pid] = (process, mark)
    return {"pid": process.pid}


def _status(workers, _libc, pid):
    process, _mark = workers[pid]
    return {"returncode": process.poll()}


def _end(workers, _libc, pid):
    process, mark = workers.pop(pid)
    if process.poll() is None:
        process.kill()
    returncode = process.wait()
    while True:  # a descendant may fork while it is being ended
        left = [pid for pid in descendants(os.getpid()) if has_variable(pid, MARK, mark)]
        if not left:
            return {"returncode": returncode}
        _kill(left)


def _end_all():
    while True:
        left = descendants(os.getpid())
        if not left:
            return
        _kill(left)


def _kill(pids):
    """End processes and reap those that have become the guard's own children."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    time.sleep(0.005)
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass


def descendants(root):
    """Living descendants of a process, zombies left out."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/{}/stat".format(entry), "rb") as stat:
                    state, parent = stat.read().rsplit(b")", 1)[1].split()[:2]
            except (OSError, IndexError):
                continue
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(entry))
    found, queue = [], [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            found.append(child)
            queue.append(child)
    return found


def has_variable(pid, name, value):
    """Whether a process was started with this variable in its environment, which what it starts inherits; a zombie has none."""
    try:
        with open("/proc/{}/environ".format(pid), "rb") as environ:
            return "{}={}".format(name, value).encode() in environ.read().split(b"\0")
    except OSError:
        return False


def _prefer_for_memory_killer(pid):
    """Should the host run out of memory, the kernel ends a worker before it ends Ray or the driver."""
    try:
        with open("/proc/{}/oom_score_adj".format(pid), "w") as score:
            score.write("1000")
    except OSError:
        pass


_VERBS = {"start": _start, "status": _status, "end": _end}

if __name__ == "__main__":
    main()
