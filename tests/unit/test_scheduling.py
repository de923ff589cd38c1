"""The order in which stages start, and what becomes of them; plans are made by hand."""

import random
from collections import Counter

import pytest

from sweep.errors import FAILURE_CLASSES
from sweep.plan import Plan, Stage
from sweep.records import Finished, Result
from sweep.scheduling import Scheduler, reusable


def stage(key, kind="train", /, gpu=False, **inputs):
    return Stage(kind, {}, inputs, key, f"stage {key}", gpu)


def plan(*stages):
    return Plan([], {each.key: each for each in stages})


def finished(key, status="ok", failure_class="", digest=None, **read):
    facts = {f"read_{role}": value for role, value in read.items()}
    return Finished(key, "train", status, failure_class, "", digest or f"digest of {key}", {}, facts, "uri", 1.0)


def ok(scheduler, key):
    return scheduler.take(key, Result(key, scheduler.running[key].kind, "attempt", "ok", digest=f"digest of {key}"))


def fail(scheduler, key, failure_class):
    return scheduler.take(key, Result(key, scheduler.running[key].kind, "attempt", "failed", failure_class=failure_class))


def started(scheduler):
    """Keys of all that can start now."""
    keys = []
    while not scheduler.finished and (found := scheduler.next()) != "wait":
        keys.append(found.key)
    return keys


# a <- b <- c     what rests on what: a carries three stages, d two, f none
#      d <- e
#           f
CHAINS = (stage("f"), stage("d"), stage("e", m="d"), stage("a"), stage("b", m="a"), stage("c", m="b"))


def test_what_carries_the_longest_chain_goes_first():
    scheduler = Scheduler(plan(*CHAINS), {}, slots=9)
    assert started(scheduler) == ["a", "d", "f"]
    assert ok(scheduler, "d") == ["d"]
    assert started(scheduler) == ["e"]
    ok(scheduler, "a")
    assert started(scheduler) == ["b"]
    assert not scheduler.finished
    for key in ("b", "e", "f"):
        ok(scheduler, key)
    assert started(scheduler) == ["c"]
    ok(scheduler, "c")
    assert scheduler.finished
    assert scheduler.outcomes.keys() == set("abcdef")


def test_equal_chains_go_in_the_order_of_the_plan():
    scheduler = Scheduler(plan(*(stage(key) for key in "zyx")), {}, slots=9)
    assert started(scheduler) == ["z", "y", "x"]


def test_no_more_run_than_there_are_slots():
    scheduler = Scheduler(plan(*(stage(key) for key in "abcd")), {}, slots=2)
    assert started(scheduler) == ["a", "b"]
    ok(scheduler, "b")
    assert started(scheduler) == ["c"]
    assert scheduler.running.keys() == {"a", "c"}


def test_a_stage_waits_for_all_of_its_inputs():
    scheduler = Scheduler(plan(stage("a"), stage("b"), stage("c", m="a", n="b", o="a")), {}, slots=9)
    assert started(scheduler) == ["a", "b"]
    ok(scheduler, "a")
    assert started(scheduler) == []
    ok(scheduler, "b")
    assert started(scheduler) == ["c"]


MEASURED = (stage("a"), stage("m", "measure", model="a"), stage("b"), stage("n", "measure", model="b"), stage("c", m="b"))


def test_measurements_wait_until_all_else_has_run_and_run_alone():
    scheduler = Scheduler(plan(*MEASURED), {}, slots=9)
    assert started(scheduler) == ["a", "b"]
    ok(scheduler, "a")
    assert started(scheduler) == []  # m could, but b runs
    ok(scheduler, "b")
    assert started(scheduler) == ["c"]
    assert started(scheduler) == []
    ok(scheduler, "c")
    assert started(scheduler) == ["m"]
    assert started(scheduler) == []  # n is ready and slots are free
    ok(scheduler, "m")
    assert started(scheduler) == ["n"]


def test_nothing_else_starts_beside_a_measurement():
    scheduler = Scheduler(plan(stage("m", "measure"), stage("a")), {}, slots=9)
    assert started(scheduler) == ["a"]
    assert fail(scheduler, "a", "timeout") == []  # it will be tried again
    assert started(scheduler) == ["a"]
    ok(scheduler, "a")
    assert started(scheduler) == ["m"]
    assert scheduler.running.keys() == {"m"}


def test_measurements_with_a_host_of_their_own_go_one_by_one_beside_all_else():
    scheduler = Scheduler(plan(*MEASURED), {}, slots=3, apart=True)
    assert started(scheduler) == ["a", "b"]
    ok(scheduler, "a")
    assert started(scheduler) == ["m"]
    ok(scheduler, "b")
    assert started(scheduler) == ["c"]  # n waits for m
    ok(scheduler, "m")
    assert started(scheduler) == ["n"]


def test_a_measurement_waits_for_a_quiet_host():
    quiet = []
    scheduler = Scheduler(plan(stage("m", "measure")), {}, slots=9, drained=lambda: bool(quiet))
    assert started(scheduler) == []
    quiet.append(True)
    assert started(scheduler) == ["m"]


def test_what_waits_for_a_gpu_holds_back_nothing_else():
    """Two stages that carry most want the one GPU; the second waits for it, and what needs none goes past it."""
    stages = (stage("g", gpu=True), stage("x", m="g"), stage("h", gpu=True), stage("y", m="h"), stage("a"), stage("b"), stage("c"))
    scheduler = Scheduler(plan(*stages), {}, slots=3, gpus=1)
    assert started(scheduler) == ["g", "a", "b"]  # three in all
    ok(scheduler, "a")
    assert started(scheduler) == ["c"]
    ok(scheduler, "g")
    assert started(scheduler) == ["h"]
    ok(scheduler, "h")
    ok(scheduler, "b")
    assert started(scheduler) == ["x", "y"]
    assert len(scheduler.running) == 3


def test_stages_on_gpus_are_bounded_by_the_slots_too():
    scheduler = Scheduler(plan(*(stage(key, gpu=True) for key in "abc")), {}, slots=2, gpus=3)
    assert started(scheduler) == ["a", "b"]
    assert fail(scheduler, "a", "preempted") == []
    assert started(scheduler) == ["a"]  # to its own lane again


def test_a_measurement_waits_for_what_runs_on_a_gpu():
    scheduler = Scheduler(plan(stage("g", gpu=True), stage("h", gpu=True), stage("m", "measure")), {}, slots=9, gpus=1)
    assert started(scheduler) == ["g"]
    ok(scheduler, "g")
    assert started(scheduler) == ["h"]
    ok(scheduler, "h")
    assert started(scheduler) == ["m"]


@pytest.mark.parametrize(("failure_class", "attempts"), [
    ("preempted", 4), ("timeout", 2), ("env_unavailable", 2), ("tracking_failed", 2), ("internal", 2), ("unheard_of", 1),
    ("oom_host", 1), ("oom_gpu", 1), ("data_unavailable", 1), ("crash_signal", 1), ("train_failed", 1), ("diverged", 1),
])
def test_how_often_a_class_of_failures_is_tried(failure_class, attempts):
    scheduler = Scheduler(plan(stage("a"), stage("b", m="a")), {}, slots=1)
    for attempt in range(1, attempts + 1):
        assert started(scheduler) == ["a"]
        assert scheduler.attempt("a") == attempt
        assert fail(scheduler, "a", failure_class) == (["a", "b"] if attempt == attempts else [])
    assert scheduler.finished
    assert scheduler.outcomes["a"].failure_class == failure_class


def test_the_budget_is_that_of_the_class_that_came_last():
    scheduler = Scheduler(plan(stage("a")), {}, slots=1)
    started(scheduler)
    assert fail(scheduler, "a", "preempted") == []
    started(scheduler)
    assert fail(scheduler, "a", "timeout") == ["a"]  # the second attempt was a time-out's last


def test_what_rests_on_a_failure_has_failed_and_says_on_which():
    scheduler = Scheduler(plan(*CHAINS), {}, slots=9)
    started(scheduler)
    assert sorted(fail(scheduler, "a", "diverged")) == ["a", "b", "c"]
    for key in "bc":
        outcome = scheduler.outcomes[key]
        assert (outcome.status, outcome.failure_class, outcome.message) == ("failed", "upstream_failed", "train of stage a: diverged")
    ok(scheduler, "d")
    assert started(scheduler) == ["e"]  # the other chain goes on


def test_a_stage_below_two_failures_is_decided_once():
    scheduler = Scheduler(plan(stage("a"), stage("b"), stage("c", m="a", n="b"), stage("d", m="c")), {}, slots=9)
    started(scheduler)
    assert sorted(fail(scheduler, "a", "diverged")) == ["a", "c", "d"]
    assert fail(scheduler, "b", "diverged") == ["b"]
    assert scheduler.outcomes["c"].message == "train of stage a: diverged"
    assert scheduler.finished


def test_finished_work_is_not_done_again():
    done = {"a": finished("a"), "b": finished("b", m="digest of a"), "d": finished("d")}
    scheduler = Scheduler(plan(*CHAINS), done, slots=9)
    assert sorted(started(scheduler)) == ["c", "e", "f"]
    assert scheduler.outcomes["a"] is done["a"]


def test_when_all_was_done_there_is_nothing_to_start():
    scheduler = Scheduler(plan(stage("a")), {"a": finished("a")}, slots=1)
    assert scheduler.finished
    assert scheduler.total == 1


def test_a_final_failure_of_before_decides_what_rests_on_it():
    scheduler = Scheduler(plan(*CHAINS), {"a": finished("a", "failed", "train_failed")}, slots=9)
    assert sorted(started(scheduler)) == ["d", "f"]
    assert scheduler.outcomes["c"].failure_class == "upstream_failed"
    assert scheduler.outcomes["c"].message == "train of stage a: train_failed"


TWO = plan(stage("a"), stage("b", model="a"))


@pytest.mark.parametrize(("records", "counted"), [
    ({"a": finished("a"), "b": finished("b", model="digest of a")}, {"a", "b"}),
    ({"a": finished("a"), "b": finished("b", model="digest of another training")}, {"a"}),
    ({"a": finished("a"), "b": finished("b")}, {"a"}),  # it does not say what it read
    ({"b": finished("b", model="digest of a")}, set()),  # what it read is gone
    ({"a": finished("a", "failed", "timeout"), "b": finished("b", model="digest of a")}, set()),
    ({"a": finished("a", "failed", "unheard_of"), "b": finished("b", model="digest of a")}, set()),
    ({"a": finished("a", digest="retrained"), "b": finished("b", model="digest of a")}, {"a"}),
    ({"x": finished("x")}, set()),
    ({}, set()),
])
def test_which_records_count(records, counted):
    assert reusable(TWO, records).keys() == counted


@pytest.mark.parametrize("failure_class", sorted(FAILURE_CLASSES))
def test_failures_that_the_environment_is_to_blame_for_never_count(failure_class):
    own = {"train_failed", "diverged", "transplant_failed", "convert_failed", "load_failed", "inference_failed", "measure_failed",
           "attack_failed", "diagnose_failed", "corrupt_failed", "crash_signal"}
    counted = reusable(TWO, {"a": finished("a", "failed", failure_class)})
    assert counted.keys() == ({"a"} if failure_class in own else set())


@pytest.mark.parametrize("seed", range(30))
def test_every_stage_is_decided_once_and_after_its_inputs(seed):
    """Random graphs, results and order of completion; failures and retries included."""
    draw = random.Random(seed)
    stages = []
    for number in range(draw.randint(1, 40)):
        above = draw.sample(stages, min(len(stages), draw.randint(0, 3)))
        kind = "measure" if draw.random() < 0.2 else "train"
        inputs = {f"role{i}": each.key for i, each in enumerate(above) if each.kind != "measure"}
        stages.append(stage(str(number), kind, gpu=kind == "train" and draw.random() < 0.3, **inputs))
    whole = plan(*stages)
    done = {key: finished(key, **{role: f"digest of {above}" for role, above in each.inputs.items()})
            for key, each in whole.stages.items() if draw.random() < 0.3}
    slots, gpus = draw.randint(1, 4), draw.randint(1, 2)
    scheduler = Scheduler(whole, done, slots, gpus=gpus)
    decided, tries = Counter(scheduler.outcomes.keys()), Counter()
    while not scheduler.finished:
        while (found := scheduler.next()) != "wait":
            tries[found.key] += 1
            assert all(scheduler.outcomes[above].status == "ok" for above in found.inputs.values())
            assert found.key not in scheduler.outcomes
            assert len(scheduler.running) <= slots
            assert sum(each.gpu for each in scheduler.running.values()) <= gpus
            assert found.kind != "measure" or len(scheduler.running) == 1
        assert scheduler.running, "nothing runs and nothing can start"
        key = draw.choice(sorted(scheduler.running))
        outcome = draw.choice(["ok"] * 6 + ["diverged", "preempted", "timeout"])
        decided.update(ok(scheduler, key) if outcome == "ok" else fail(scheduler, key, outcome))
    assert decided == Counter(dict.fromkeys(whole.stages, 1))
    assert max(tries.values(), default=1) <= 1 + FAILURE_CLASSES["preempted"].retries
    for key, each in whole.stages.items():
        failed_above = any(scheduler.outcomes[above].status == "failed" for above in each.inputs.values())
        assert failed_above == (scheduler.outcomes[key].failure_class == "upstream_failed")
