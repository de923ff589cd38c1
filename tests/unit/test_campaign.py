"""What the driver asks of the ledger around each stage, with a ledger that notes it."""

import io
from concurrent.futures import Future

import pytest
from rich.console import Console

from sweep import campaign
from sweep.campaign import Campaign
from sweep.errors import SweepError
from sweep.progress import Costs, View
from sweep.records import DataOrder, Finished, Place, Result, Upload
from sweep.scheduling import Scheduler

DATA = {"mnist": DataOrder("mnist", None, False, "data of mnist", "splits of mnist", "idx")}


class Ledger:
    """Answers at once: what `answers` has for a verb, one after the other, then None."""

    def __init__(self, **answers):
        self.asked, self._answers = [], {verb: list(values) for verb, values in answers.items()}

    def call(self, verb, *arguments):
        self.asked.append((verb, *arguments))
        future = Future()
        answer = self._answers[verb].pop(0) if self._answers.get(verb) else None
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def of(self, verb):
        return [arguments for name, *arguments in self.asked if name == verb]


@pytest.fixture
def conduct(make_sweep, make_plan, tmp_path):
    """A campaign, its scheduler and its plan."""

    def make(ledger, grid=None, finished=None, server=None, **content):
        content = {"limits": {"seconds": {"train": 7.0}, "memory_gb": 2}} | content
        sweep, made = make_sweep(grid, **content), make_plan(grid)
        scheduler = Scheduler(made, finished or {}, 9)
        view = View(made, scheduler.outcomes, Costs({}), 9, Console(file=io.StringIO()))
        common = {"git_commit": "abc"}
        return Campaign(sweep, made, scheduler, ledger, view, data=DATA, work=tmp_path, common=common, server=server), scheduler, made

    return make


def done(stage, attempt, **fields):
    return Result(stage.key, stage.kind, attempt, **({"status": "ok", "digest": f"d {attempt}", "folder": f"/made/{attempt}"} | fields))


def start(conducted, stage, attempt):
    """Open an attempt, and its order."""
    conducted.open(stage, attempt).result(timeout=10)
    return conducted.order(stage, attempt)


def test_orders_results_and_the_row(conduct, tmp_path):
    ledger = Ledger(write_cell=[True])
    conducted, scheduler, made = conduct(ledger)
    train = scheduler.next()
    order = start(conducted, train, "1")
    assert (order.stage, order.attempt, order.folder) == (train, "1", str(tmp_path / "1"))
    assert (order.threads, order.seconds, order.memory_bytes) == (1, 7.0, 2_000_000_000)
    assert (order.inputs, order.data, order.upload) == ({}, DATA["mnist"], None)
    (opened,) = ledger.of("open_stage")
    assert opened[:4] == ["1", train.key, "train", "train pytorch lenet5 mnist defaults seed 0"]
    assert opened[4] == {
        "framework": "pytorch", "version": "pytorch 1.0", "toolchain": "default", "control": "none", "dataset": "mnist",
        "architecture": "lenet5",
    }
    conducted.ended(train, done(train, "1"))
    evaluate = scheduler.next()
    assert start(conducted, evaluate, "2").inputs == {"model": Place("d 1", "/made/1", None)}
    assert ledger.of("write_cell") == []
    conducted.ended(evaluate, done(evaluate, "2", metrics={"accuracy": 0.5}))
    assert [verb for verb, *_rest in ledger.asked] == ["open_stage", "commit_stage", "open_stage", "commit_stage", "write_cell"]
    ((row,),) = ledger.of("write_cell")
    assert row.tags == {"git_commit": "abc", "dataset_source": "idx", "dataset_digest": "data of mnist", "status": "ok"}
    assert conducted.written() == 1
    assert list(conducted.rows) == [made.cells[0].key]


def test_an_order_has_the_sweeps_threads_and_leaves_memory_to_the_machine_unless_told(conduct):
    conducted, scheduler, _plan = conduct(Ledger(), threads=3, limits={})
    order = start(conducted, scheduler.next(), "1")
    assert (order.threads, order.memory_bytes) == (3, 0)


def test_rows_that_are_decided_from_the_start(conduct):
    """One cell is skipped; one was done before."""
    probe = conduct(Ledger(), {"quantization": ["float32", "float16"]})[2]
    stages = list(probe.stages.values())
    finished = {}
    for stage in stages:
        read = {f"read_{role}": f"d {key}" for role, key in stage.inputs.items()}
        finished[stage.key] = Finished(stage.key, stage.kind, "ok", "", "", f"d {stage.key}", {}, read, "file:///kept", 1.0)
    ledger = Ledger()
    conducted, scheduler, _plan = conduct(ledger, {"quantization": ["float32", "float16"]}, finished)
    assert scheduler.finished
    assert [row.tags["status"] for (row,) in ledger.of("write_cell")] == ["ok", "skipped"]
    assert len(conducted.rows) == 2


def test_skipped_cells_beyond_a_number_get_no_rows(conduct, monkeypatch):
    monkeypatch.setattr(campaign, "SKIPPED_ROWS", 1)
    ledger = Ledger()
    conducted, _scheduler, _plan = conduct(ledger, {"quantization": ["float16", "dynamic_int8"]})
    assert ledger.of("write_cell") == []
    assert len(conducted.rows) == 2


def test_a_failure_decides_the_cells_above_it(conduct):
    ledger = Ledger()
    conducted, scheduler, _plan = conduct(ledger, [{}, {"runtime": ["onnxruntime"]}, {"seed": [1]}])
    first = scheduler.next()
    start(conducted, first, "1")
    conducted.ended(first, done(first, "1", status="failed", failure_class="diverged", message="nan"))
    rows = [row for (row,) in ledger.of("write_cell")]
    assert [(row.params["runtime"], row.tags["failure_class"]) for row in rows] == [("native", "diverged"), ("onnxruntime", "diverged")]


def test_a_stage_that_is_tried_again_decides_nothing(conduct):
    ledger = Ledger()
    conducted, scheduler, _plan = conduct(ledger)
    stage = scheduler.next()
    start(conducted, stage, "1")
    conducted.ended(stage, done(stage, "1", status="failed", failure_class="preempted"))
    assert ledger.of("write_cell") == []
    assert scheduler.next() == stage


def test_what_runs_is_recorded_as_interrupted(conduct):
    ledger = Ledger()
    conducted, scheduler, _plan = conduct(ledger, {"seed": [0, 1, 2]})
    stages = [scheduler.next() for _ in range(3)]
    for number, stage in enumerate(stages):
        start(conducted, stage, str(number))
    conducted.ended(stages[1], done(stages[1], "1"))
    assert conducted.interrupt() == 2
    assert ledger.of("interrupt_stage") == [["0"], ["2"]]


def test_nodes_of_a_cluster_upload_by_themselves(conduct):
    ledger = Ledger(open_stage=[("run 1", "s3://runs/1"), ("run 2", "s3://runs/2")])
    conducted, scheduler, _plan = conduct(ledger, server="http://mlflow:5000")
    train = scheduler.next()
    assert start(conducted, train, "1").upload == Upload("http://mlflow:5000", "run 1", "s3://runs/1")
    conducted.ended(train, done(train, "1", folder=None))
    evaluate = scheduler.next()
    assert start(conducted, evaluate, "2").inputs == {"model": Place("d 1", None, "s3://runs/1")}


def test_a_server_that_is_away_is_waited_for(conduct, monkeypatch):
    """A request that waits in the spool is answered with nothing; to repeat it is harmless."""
    monkeypatch.setattr(campaign, "AWAY_SECONDS", 0.2)
    ledger = Ledger(open_stage=[None, None, ("run 1", "s3://runs/1")])
    conducted, scheduler, _plan = conduct(ledger, server="http://mlflow:5000")
    stage = scheduler.next()
    opened = conducted.open(stage, "1")
    assert not opened.done()  # the driver's loop goes on meanwhile
    assert opened.result(timeout=10) == ("run 1", "s3://runs/1")
    assert conducted.order(stage, "1").upload.run_id == "run 1"
    asked = ledger.of("open_stage")
    assert len(asked) == 3
    assert asked[0] == asked[1] == asked[2]


def test_the_drivers_own_machine_does_not_wait_for_a_server_that_is_away(conduct):
    conducted, scheduler, _plan = conduct(Ledger(open_stage=[None]))
    stage = scheduler.next()
    assert conducted.open(stage, "1").done()
    assert conducted.order(stage, "1").upload is None


def test_a_run_that_can_not_be_opened_is_an_error(conduct):
    conducted, scheduler, _plan = conduct(Ledger(open_stage=[SweepError("open_stage: no such experiment")]), server="http://mlflow:5000")
    with pytest.raises(SweepError, match="no such experiment"):
        start(conducted, scheduler.next(), "1")


def test_a_record_that_was_refused_for_good_is_an_error(conduct):
    ledger = Ledger(commit_stage=[SweepError("commit_stage: the run was deleted")])
    conducted, scheduler, _plan = conduct(ledger)
    train = scheduler.next()
    start(conducted, train, "1")
    conducted.ended(train, done(train, "1"))
    with pytest.raises(SweepError, match="the run was deleted"):
        conducted.written()
