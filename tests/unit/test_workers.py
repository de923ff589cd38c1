"""The owner's side of the border, with real workers that fail in every way there is."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

from sweep import toolchain, workers
from sweep.errors import StageFailed
from sweep.toolchain import Toolchain
from sweep.workers import Limits, Pool, Raised, Shape

FAULT = "sweep.frameworks._faults:fault"
LIMITS = Limits(seconds=30.0, memory_bytes=4 << 30)
GONE_SECONDS = 5.0

PROBE = '''
import os, runpy, subprocess, sys, time, types
import numpy as np

def echo(*arrays, **arguments):
    return arguments, arrays

def doubled(array):
    return None, [array * 2]

def leave(status):
    sys.exit(status)

def unsendable():
    return {"a": {1, 2}}

def say(words):
    print(words)
    print(words + " aloud", file=sys.stderr)
    subprocess.run(["echo", words + " from below"])

def sleep(seconds):
    time.sleep(seconds)
    return seconds

def start(seconds):
    return subprocess.Popen(["sleep", str(seconds)], start_new_session=True).pid

def garble():
    """Into the connection: the length of a frame and what is no message."""
    (socket,) = [int(number) for number in os.listdir("/proc/self/fd") if _target(number).startswith("socket:")]
    os.write(socket, b"\\0\\0\\0\\5hello")

def _target(number):
    try:
        return os.readlink("/proc/self/fd/" + number)
    except OSError:
        return ""

module = types.ModuleType("sweep.probe")
module.__dict__.update({name: value for name, value in globals().items() if callable(value)})
sys.modules["sweep.probe"] = module
assert sys.argv[1:3] == ["-m", "sweep.worker.serve"]
from sweep.worker import serve
serve.main(sys.argv[3])
'''


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """A toolchain whose workers have some more functions, in `sweep.probe`."""
    script = tmp_path_factory.mktemp("probe") / "probe.py"
    script.write_text(PROBE)
    return Toolchain("probe", (sys.executable, str(script)), "")


@pytest.fixture(scope="module")
def pool():
    made = Pool(keep=2, recycle_bytes=4 << 30)
    yield made
    made.close()


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.txt"


@pytest.fixture
def mark(monkeypatch):
    """A mark in the environment of everything that a test starts, by which it is found again wherever it went."""
    made = f"TEST_MARK={uuid.uuid4().hex}"
    monkeypatch.setenv(*made.split("="))
    return made.encode()


def living(mark, guards=False):
    """Processes with a mark in their environment, guards left out or alone; zombies have no environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found += [int(entry.name)] * ((b"sweep.worker.guard" in (entry / "cmdline").read_bytes()) == guards)
        except OSError:
            continue
    return found


def gone(*pids, seconds=GONE_SECONDS):
    """Whether these processes end in time."""
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}/environ").exists() and _state(pid) not in "ZX" for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def failure_of(pool, log, kind, limits=LIMITS, shape=None):
    """What a call that performs a fault raises, and the worker."""
    with pytest.raises(StageFailed) as raised, pool.borrow(shape or Shape(toolchain.default()), log) as worker:
        worker.call(FAULT, {"kind": kind, "seed": 7}, limits, log)
    return raised.value, worker


def failure_while(pool, log, act):
    """What a call that hangs raises when this is done to its worker in the middle, and the worker."""
    seen = []

    def hang():
        with pool.borrow(Shape(toolchain.default()), log) as worker:
            seen.append(worker)
            threading.Timer(0.3, act, (worker,)).start()
            worker.call(FAULT, {"kind": "hang", "seed": 0}, LIMITS, log)

    with pytest.raises(StageFailed) as raised:
        hang()
    return raised.value, seen[0]


def test_an_exception_is_told_and_the_worker_lives_on(pool, log):
    failure, worker = failure_of(pool, log, "raise")
    assert isinstance(failure, Raised)
    assert (failure.kind, failure.failure_class) == ("RuntimeError", "")
    assert failure.message == "RuntimeError: fault asked for with seed 7"
    assert 'File "' in failure.traceback
    assert "RuntimeError: fault asked for with seed 7" in log.read_text()
    with pool.borrow(worker.shape, log) as again:
        assert again.pid == worker.pid
        assert again.call("sweep.layers:count", {"layers": []}, LIMITS, log) == (0, [])


@pytest.mark.parametrize(("kind", "message"), [
    ("segfault", "the worker was ended by SIGSEGV"),
    ("abort", "the worker was ended by SIGABRT"),
    ("exit", "the worker exited with status 3 in the middle of the stage"),
])
def test_a_crash_is_named(pool, log, kind, message):
    failure, worker = failure_of(pool, log, kind)
    assert (failure.failure_class, failure.message) == ("crash_signal", message)
    assert worker.gone
    assert gone(worker.pid)


def test_a_hang_is_ended_in_time(pool, log):
    started = time.monotonic()
    failure, worker = failure_of(pool, log, "hang", Limits(0.5, LIMITS.memory_bytes))
    assert (failure.failure_class, failure.message) == ("timeout", "took over 0.5 s")
    assert time.monotonic() - started < 5
    assert gone(worker.pid)


def test_the_calls_of_a_stage_share_its_time(pool, log, probe):
    """Each may take a second; together they have 1.2, of which the first takes half."""
    limits = Limits(1.0, LIMITS.memory_bytes, until=(started := time.monotonic()) + 1.2)
    with pytest.raises(StageFailed) as raised, pool.borrow(Shape(probe), log) as worker:
        assert worker.call("sweep.probe:sleep", {"seconds": 0.6}, limits, log)[0] == 0.6
        worker.call("sweep.probe:sleep", {"seconds": 60}, limits, log)
    assert raised.value.failure_class == "timeout"
    assert 1.2 <= time.monotonic() - started < 1.6  # and not 0.6 + 1
    assert gone(worker.pid)


def test_the_memory_of_what_a_worker_started_counts(pool, log, probe):
    with pool.fresh(Shape(probe), log) as worker:
        alone = workers.tree_bytes(worker.pid)
        assert alone == workers.resident_bytes(worker.pid)
        child, _arrays = worker.call("sweep.probe:start", {"seconds": 60}, LIMITS, log)
        both = workers.tree_bytes(worker.pid)
        assert both - workers.resident_bytes(worker.pid) == workers.resident_bytes(child) > 0
    assert workers.tree_bytes(worker.pid) == 0


def test_a_memory_hog_is_ended(pool, log):
    failure, worker = failure_of(pool, log, "hog", Limits(30.0, 300_000_000))
    assert failure.failure_class == "oom_host"
    assert failure.message.endswith("GB of memory; the limit is 0.3")
    assert gone(worker.pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_ended_from_outside(pool, log, number):
    failure, _worker = failure_while(pool, log, lambda worker: os.kill(worker.pid, number))
    assert (failure.failure_class, failure.message) == ("preempted", f"the worker was ended from outside by {number.name}")


def test_what_a_worker_started_goes_with_it(log, mark):
    """A child in a session of its own, which no signal to the worker's group reaches."""
    pool = Pool(keep=2, recycle_bytes=4 << 30)
    failure, _worker = failure_of(pool, log, "hang_with_child", Limits(1.0, LIMITS.memory_bytes))
    assert failure.failure_class == "timeout"
    assert living(mark) == []
    guard = living(mark, guards=True)
    assert guard
    pool.close()
    assert gone(*guard)


def test_what_a_worker_left_behind_goes_when_the_worker_does(pool, log, probe):
    with pool.borrow(Shape(probe), log) as worker:
        child, _arrays = worker.call("sweep.probe:start", {"seconds": 600}, LIMITS, log)
    assert _state(child) not in "ZX"
    with pool.borrow(Shape(probe), log) as other:  # the same, warm
        assert other.pid == worker.pid
    worker.end()
    assert gone(child, worker.pid)


OWNER = '''
import sys, threading, time
from pathlib import Path
from sweep import toolchain
from sweep.workers import Limits, Pool, Shape

pool, log = Pool(keep=4, recycle_bytes=4 << 30), Path(sys.argv[1])
def run(threads, kind):
    with pool.borrow(Shape(toolchain.default(), threads), log) as worker:
        worker.call("sweep.frameworks._faults:fault", {"kind": kind, "seed": 0}, Limits(600.0, 1 << 40), log)
for number in (1, 2):
    threading.Thread(target=run, args=(number, "hang_with_child"), daemon=True).start()
time.sleep(600)
'''


def test_when_the_owner_is_killed_nothing_is_left(log, mark, tmp_path):
    """The owner, two workers, each with a child in a session of its own, and the guard."""
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    owner = subprocess.Popen([sys.executable, str(script), str(log)], start_new_session=True)
    deadline = time.monotonic() + 30
    while len(living(mark)) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = living(mark)
    assert len(pids) == 5
    pids += living(mark, guards=True)
    owner.kill()
    owner.wait()
    assert gone(*pids)
    assert living(mark) + living(mark, guards=True) == []


def test_a_pool_outlives_its_guard(log):
    pool = Pool(keep=2, recycle_bytes=4 << 30)
    failure, worker = failure_while(pool, log, lambda _worker: os.kill(pool._guard._process.pid, signal.SIGKILL))
    assert failure.failure_class == "preempted"
    assert gone(worker.pid)
    with pool.borrow(Shape(toolchain.default()), log) as another:
        assert another.call("sweep.layers:count", {"layers": []}, LIMITS, log)[0] == 0
    pool.close()
    assert gone(another.pid)


def test_idle_workers_that_went_with_the_guard_are_not_handed_out(log):
    pool = Pool(keep=2, recycle_bytes=4 << 30)
    with pool.borrow(Shape(toolchain.default()), log) as worker:
        pass
    os.kill(pool._guard._process.pid, signal.SIGKILL)
    assert gone(worker.pid)
    with pool.borrow(Shape(toolchain.default()), log) as another:
        assert another.pid != worker.pid
        assert another.call("sweep.layers:count", {"layers": []}, LIMITS, log)[0] == 0
    pool.close()


def test_a_worker_may_be_ended_by_another_thread_while_it_is_called(log):
    """As the model's side of an attack is, when the attacker has died. The guard and its other workers stay."""
    pool = Pool(keep=2, recycle_bytes=4 << 30)
    with pool.borrow(Shape(toolchain.default(), threads=2), log) as bystander:
        failure, worker = failure_while(pool, log, lambda worker: worker.end())
        assert failure.failure_class == "preempted"
        assert worker.end() == -signal.SIGKILL  # once more does nothing
        assert bystander.call("sweep.layers:count", {"layers": []}, LIMITS, log)[0] == 0
    pool.close()


def test_the_same_shape_gets_the_same_worker_and_another_shape_another(log):
    pool = Pool(keep=4, recycle_bytes=4 << 30)
    one, two = Shape(toolchain.default()), Shape(toolchain.default(), threads=2)
    on_gpu = Shape(toolchain.default(), gpus=("0",))
    pids = []
    for shape in (one, two, one, on_gpu, two):
        with pool.borrow(shape, log) as worker:
            pids.append(worker.pid)
    assert pids[0] == pids[2]
    assert pids[1] == pids[4]
    assert len(set(pids)) == 3
    with pool.borrow(one, log) as first, pool.borrow(one, log) as second:  # at the same time
        assert first.pid == pids[0]
        assert second.pid not in pids
    with pool.fresh(one, log) as fresh:
        assert fresh.pid not in (*pids, second.pid)
    assert gone(fresh.pid)
    pool.close()
    assert gone(*pids, second.pid)


def test_the_least_recently_used_worker_goes_first(log):
    pool = Pool(keep=2, recycle_bytes=4 << 30)
    shapes = [Shape(toolchain.default(), threads=number) for number in (1, 2, 3)]

    def used(shape):
        with pool.borrow(shape, log) as worker:
            worker.call("sweep.layers:count", {"layers": []}, LIMITS, log)
        return worker.pid

    first, second = used(shapes[0]), used(shapes[1])
    assert used(shapes[0]) == first
    third = used(shapes[2])
    assert gone(second)
    assert (used(shapes[0]), used(shapes[2])) == (first, third)
    pool.close()


def test_a_worker_that_has_grown_is_not_kept(log):
    pool = Pool(keep=2, recycle_bytes=1)
    with pool.borrow(Shape(toolchain.default()), log) as worker:
        worker.call("sweep.layers:count", {"layers": []}, LIMITS, log)
    assert gone(worker.pid)
    pool.close()


@pytest.mark.parametrize(("shape", "expected"), [
    ({}, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1",
          "TF_NUM_INTEROP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true",
          "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    ({"threads": 3, "gpus": ("1", "2")}, {"OMP_NUM_THREADS": "3", "TF_NUM_INTRAOP_THREADS": "3", "CUDA_VISIBLE_DEVICES": "1,2"}),
])
def test_threads_and_devices_are_set_in_the_workers_environment(pool, log, monkeypatch, shape, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    with pool.borrow(Shape(toolchain.default(), **shape), log) as worker:
        environment = dict(line.split("=", 1) for line in Path(f"/proc/{worker.pid}/environ").read_text().split("\0") if "=" in line)
    assert {name: environment.get(name) for name in expected} == expected


SECRETS = ("MLFLOW_TRACKING_USERNAME", "AWS_REGION", "RAY_ADDRESS", "HF_TOKEN", "CLIENT_SECRET", "DB_PASSWORD", "GIT_CREDENTIALS")


def test_secrets_are_not_in_a_workers_environment(pool, log, monkeypatch):
    for name in (*SECRETS, "SOMETHING_ELSE"):
        monkeypatch.setenv(name, "a value")
    with pool.fresh(Shape(toolchain.default()), log) as worker:
        environment = dict(line.split("=", 1) for line in Path(f"/proc/{worker.pid}/environ").read_text().split("\0") if "=" in line)
    assert [name for name in SECRETS if name in environment] == []
    assert environment["SOMETHING_ELSE"] == "a value"
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(("command", "message"), [
    (("/no/such/python3",), "a worker of toolchain broken can't be started: [Errno 2] No such file or directory: '/no/such/python3'"),
    ((sys.executable, "-c", "import sys; sys.exit(7)"), "a worker of toolchain broken exited with status 7"),
    ((sys.executable, "-c", "import os; os.abort()"), "a worker of toolchain broken exited with status -6"),
])
def test_a_toolchain_that_does_not_come_up(pool, log, command, message):
    with pytest.raises(StageFailed) as raised, pool.borrow(Shape(Toolchain("broken", command, "")), log):
        pass
    assert (raised.value.failure_class, raised.value.message) == ("env_unavailable", message)
    with pool.borrow(Shape(toolchain.default()), log) as worker:  # the others are not harmed
        assert worker.call("sweep.layers:count", {"layers": []}, LIMITS, log)[0] == 0


def test_a_toolchain_that_hangs_on_import(pool, log, monkeypatch):
    monkeypatch.setattr(workers, "START_SECONDS", 0.5)
    hanging = Toolchain("slow", (sys.executable, "-c", "import time; time.sleep(600)"), "")
    with pytest.raises(StageFailed) as raised, pool.borrow(Shape(hanging), log):
        pass
    assert raised.value.failure_class == "env_unavailable"
    assert raised.value.message == "a worker of toolchain slow did not start within 0.5 s"


def test_arrays_go_there_and_back(pool, log, probe):
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1], np.float64(3), np.empty((0, 4), np.int8)]
    with pool.borrow(Shape(probe), log) as worker:
        value, returned = worker.call("sweep.probe:echo", {"a": [1, None, "ü"]}, LIMITS, log, arrays)
        (doubled,) = worker.call("sweep.probe:doubled", {}, LIMITS, log, arrays[:1])[1]
    assert value == {"a": [1, None, "ü"]}
    for sent, came in zip(arrays, returned, strict=True):
        assert (came.dtype, came.shape) == (sent.dtype, sent.shape)
        np.testing.assert_array_equal(came, sent)
    np.testing.assert_array_equal(doubled, [[4, 2, 0], [10, 8, 6]])


@pytest.mark.parametrize(("function", "arguments", "kind"), [
    ("sweep.probe:leave", {"status": 3}, "SystemExit"),
    ("sweep.probe:unsendable", {}, "TypeError"),
    ("sweep.probe:nothing", {}, "AttributeError"),
    ("sweep.nowhere:nothing", {}, "ModuleNotFoundError"),
    ("os:getpid", {}, "ValueError"),
    ("sweep.probe:leave", {}, "TypeError"),
])
def test_calls_that_can_not_be_are_answered(pool, log, probe, function, arguments, kind):
    with pool.borrow(Shape(probe), log) as worker:
        with pytest.raises(Raised) as raised:
            worker.call(function, arguments, LIMITS, log)
        assert raised.value.kind == kind
        assert worker.call("sweep.layers:count", {"layers": []}, LIMITS, log)[0] == 0


def test_an_answer_that_is_none_ends_the_worker(pool, log, probe):
    with pytest.raises(StageFailed) as raised, pool.borrow(Shape(probe), log) as worker:
        worker.call("sweep.probe:garble", {}, LIMITS, log)
    assert raised.value.failure_class == "crash_signal"
    assert raised.value.message.startswith("the worker's answer can't be read: ")
    assert gone(worker.pid)


def test_what_is_printed_goes_to_the_log_of_its_call(pool, probe, tmp_path):
    logs = [tmp_path / "one.txt", tmp_path / "two.txt"]
    with pool.borrow(Shape(probe), tmp_path / "start.txt") as worker:
        for log, words in zip(logs, ("first", "second"), strict=True):
            worker.call("sweep.probe:say", {"words": words}, LIMITS, log)
    for log, words in zip(logs, ("first", "second"), strict=True):
        assert sorted(log.read_text().split("\n")[:-1]) == [words, f"{words} aloud", f"{words} from below"]


def test_the_key_of_a_worker_is_not_passed_on(pool, log, probe):
    with pool.borrow(Shape(probe), log) as worker:
        child, _arrays = worker.call("sweep.probe:start", {"seconds": 60}, LIMITS, log)
        assert b"SWEEP_WORKER_KEY" not in Path(f"/proc/{child}/environ").read_bytes()
    worker.end()


def test_ctrl_c_does_not_reach_workers(tmp_path, log):
    """SIGINT to the owner's whole group, as a terminal sends it: the owner decides, its worker goes on."""
    script = tmp_path / "owner.py"
    script.write_text(textwrap.dedent('''
        import os, signal, sys
        from pathlib import Path
        from sweep import toolchain
        from sweep.workers import Limits, Pool, Shape
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        pool, log = Pool(keep=1, recycle_bytes=4 << 30), Path(sys.argv[1])
        with pool.borrow(Shape(toolchain.default()), log) as worker:
            os.killpg(os.getpgrp(), signal.SIGINT)
            print(worker.call("sweep.layers:count", {"layers": []}, Limits(30.0, 1 << 40), log)[0], pool._guard.alive())
        pool.close()
    '''))
    done = subprocess.run([sys.executable, str(script), str(log)], start_new_session=True, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0 True\n", "")
