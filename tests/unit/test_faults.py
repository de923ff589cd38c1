"""Faults end a process in the way their names say."""

import os
import signal
import subprocess
import sys
import time

import pytest

from sweep.architectures import linear
from sweep.frameworks import _faults, fake

PROVOKE = "from sweep.frameworks import _faults; _faults.provoke({{'train': {{'3': {!r}}}}}, 'train', 3)"


def start(kind, **options):
    return subprocess.Popen([sys.executable, "-c", PROVOKE.format(kind)], stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        ("raise", 1, "RuntimeError"),
        ("nan", 1, "FloatingPointError"),
        ("segfault", -signal.SIGSEGV, ""),
        ("abort", -signal.SIGABRT, ""),
        ("exit", 3, ""),
    ],
)
def test_deaths(kind, status, said):
    process = start(kind)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert said in errors


def test_hog_takes_memory_until_it_is_refused():
    def limit():
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    process = start("hog", preexec_fn=limit, env=dict(os.environ, OMP_NUM_THREADS="1"))
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "MemoryError" in errors) == (1, True)


def test_hang_with_child_leaves_a_grandchild_in_its_own_session():
    process = start("hang_with_child")
    try:
        children = []
        deadline = time.monotonic() + 60
        while not children and time.monotonic() < deadline:
            time.sleep(0.05)
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                children = [int(child) for child in file.read().split()]
        assert process.poll() is None
        assert [os.getsid(child) for child in children] == children
    finally:
        process.kill()
        process.wait()
        for child in children:
            os.kill(child, signal.SIGKILL)
        process.stderr.close()


def test_nothing_happens_unless_asked_for():
    _faults.provoke({}, "train", 3)
    _faults.provoke({"train": {"4": "exit"}}, "train", 3)
    _faults.provoke({"convert": {"3": "exit"}}, "train", 3)


def test_the_fake_framework_takes_faults_and_a_delay():
    import numpy as np

    net = linear.layers((2, 2, 1), 2)
    images, labels = np.zeros((4, 2, 2, 1), np.float32), np.array([0, 1, 0, 1])
    plan = {
        "optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.0, "epsilon": None, "l2": 0.0, "batch_size": 4, "epochs": 1, "decay": [],
        "recipe": "matched", "seed": 3,
    }
    try:
        fake.set_options({"faults": {"train": {"3": "raise"}}})
        with pytest.raises(RuntimeError, match="seed 3"):
            next(fake.train(fake.build(net, "matched", 3), images, labels, plan, None))
        fake.set_options({"sleep_s": 0.2})
        started = time.perf_counter()
        next(fake.train(fake.build(net, "matched", 3), images, labels, plan, None))
        assert time.perf_counter() - started >= 0.2
        with pytest.raises(ValueError, match="nonsense"):
            fake.set_options({"nonsense": 1})
    finally:
        fake.set_options({})
