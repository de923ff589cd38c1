"""What a user sees while a sweep runs, and what it expects to take."""

import io

import pytest
from rich.console import Console

from sweep import progress
from sweep.plan import Plan, Stage
from sweep.progress import Costs, View, duration
from sweep.records import Finished, Result


def stage(key, kind="train", framework="pytorch", **inputs):
    return Stage(kind, {"framework": framework} if kind == "train" else {"runtime": framework}, inputs, key, f"label {key}")


def finished(kind, backend, seconds, status="ok"):
    return Finished("k", kind, status, "", "", "", {}, {"backend": backend}, "", seconds)


def costs(*records):
    return Costs({str(number): record for number, record in enumerate(records)})


KNOWN = (
    finished("train", "pytorch", 10.0), finished("train", "pytorch", 20.0), finished("train", "tensorflow", 60.0),
    finished("measure", "native", 4.0), finished("train", "pytorch", 500.0, "failed"),
)


def test_expected_seconds_are_those_of_the_same_backend_else_of_the_same_kind():
    known = costs(*KNOWN)
    assert known.of(stage("a")) == 15.0
    assert known.of(stage("a", framework="tensorflow")) == 60.0
    assert known.of(stage("a", framework="fake")) == 30.0  # of all three trainings that succeeded
    assert known.of(stage("a", "convert")) is None


def test_what_is_left_runs_side_by_side_and_measurements_one_by_one():
    known = costs(*KNOWN)
    left = [stage("a"), stage("b"), stage("c"), stage("m", "measure", "native"), stage("n", "measure", "native")]
    assert known.remaining(left, slots=1) == 3 * 15 + 2 * 4
    assert known.remaining(left, slots=3) == 15 + 2 * 4
    assert known.remaining([*left, stage("x", "convert")], slots=3) == 15 + 2 * 4  # what is unknown is left out
    assert known.remaining([stage("x", "convert")], slots=3) is None
    assert costs().remaining([stage("a")], slots=3) is None


def test_what_has_run_is_known_from_then_on():
    known = costs()
    known.add("train", "pytorch", 8.0)
    assert known.of(stage("a")) == 8.0
    known.add("train", "pytorch", 4.0)
    assert known.of(stage("a")) == 6.0


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (89.4, "89 s"), (90, "2 min"), (3600, "60 min"), (5400, "1.5 h"), (86400, "24.0 h")]
)
def test_durations(seconds, words):
    assert duration(seconds) == words


PLAN = Plan([], {each.key: each for each in (stage("a"), stage("b"), stage("c", "convert", "onnxruntime", model="a"))})


def lines_of(console):
    return console.file.getvalue().splitlines()


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=300)


def test_lines_where_there_is_no_terminal(console, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    outcomes = {}
    with View(PLAN, outcomes, costs(), 2, console) as view:
        view.started(PLAN.stages["a"])
        outcomes["a"] = Result("a", "train", "1", "ok", facts={"backend": "pytorch"}, seconds=6.0)
        view.ended(PLAN.stages["a"], outcomes["a"], final=True)
        view.started(PLAN.stages["b"])
        outcomes["b"] = Result("b", "train", "2", "failed", failure_class="diverged", message="the loss is nan")
        view.ended(PLAN.stages["b"], outcomes["b"], final=True)
    assert lines_of(console) == [
        "train 0/2, convert 0/1; stages failed 0; running: train label a",
        "train 1/2, convert 0/1; stages failed 0; running: train label b; about 3 s left",  # 6 s, two at a time
        "train of label b: diverged: the loss is nan",
        "train 1/2, convert 0/1; stages failed 1; running: nothing",
    ]


def test_lines_do_not_come_too_often(console):
    with View(PLAN, {}, costs(), 2, console) as view:
        for _ in range(50):
            view.started(PLAN.stages["a"])
            view.ended(PLAN.stages["a"], Result("a", "train", "1", "ok"), final=True)
    assert len(lines_of(console)) <= 2


def test_a_stage_that_is_tried_again_says_so(console):
    with View(PLAN, {}, costs(), 2, console) as view:
        view.started(PLAN.stages["a"])
        view.ended(PLAN.stages["a"], Result("a", "train", "1", "failed", failure_class="timeout", message="took over 5 s"), final=False)
    assert lines_of(console)[1] == "train of label a: timeout: took over 5 s; trying again"


def test_the_live_view_on_a_terminal():
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    outcomes = {"a": Result("a", "train", "1", "ok")}
    with View(PLAN, outcomes, costs(finished("train", "pytorch", 10.0)), 2, console) as view:
        view.started(PLAN.stages["b"])
        rendered = Console(file=io.StringIO(), width=120)
        rendered.print(view._render())
    text = rendered.file.getvalue()
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["stage"] == ["done", "running", "failed", "of"]
    assert rows["train"][:4] == ["1", "1", "0", "2"] or rows["train"][0] == "label"
    assert "train label b (0 s)" in text
    assert "1 stages were done before" in text
