"""The driver's handle on the tracker: nothing is lost, doubled or out of order, whoever is killed and whatever is away."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest

from sweep import ledger
from sweep.errors import StoreBusy, SweepError
from sweep.ledger import Ledger, StoreAddress
from sweep.records import CellRecord, Result, write_manifest

ROOT = Path(__file__).parents[2]


def address_of(database):
    folder = database.parent
    return StoreAddress(f"sqlite:///{database}", (folder / "artifacts").as_uri(), str(folder), "mine", "me")


@pytest.fixture
def address(database):
    return address_of(database)


def client_of(database):
    from mlflow.tracking import MlflowClient  # late: this module is also the driver's below, which does without

    return MlflowClient(f"sqlite:///{database}")


@pytest.fixture
def client(database):
    return client_of(database)


@pytest.fixture(scope="module")
def tracked(empty_database, tmp_path_factory):
    """A ledger for the tests that don't harm it; to start one takes seconds."""
    database = tmp_path_factory.mktemp("shared") / "mlflow.db"
    database.write_bytes(empty_database)
    made = started(address_of(database))
    yield made
    assert made.close() == 0
    assert made.close() == 0
    assert made.backlog == 0


def opened(ledger, number):
    return ledger.call("open_stage", f"attempt {number}", f"k{number}", "train", f"train {number}", {"framework": "fake"})


def result(work, number, status="ok"):
    folder = work / f"attempt {number}"
    folder.mkdir(parents=True)
    (folder / "model.bin").write_text(str(number))
    digest = write_manifest(folder)
    curves = [{"train_loss": 1.0}, {"train_loss": 0.5}]
    return Result(f"k{number}", "train", f"attempt {number}", status, {"accuracy": 0.5}, curves, digest=digest, folder=str(folder))


def row(number, **changes):
    fields = {"params": {"seed": number}, "tags": {"status": "ok"}, "metrics": {"accuracy": 0.5}, "stages": [f"k{number}"]} | changes
    return CellRecord(f"c{number}", f"cell {number}", **fields)


def runs(client, experiment):
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id], max_results=1000)


def started(address):
    made = Ledger(address)
    made.call("scan").result()
    made.call("open_sweep", "name: mine\n", {}, {}).result()
    return made


def assert_complete(client, count):
    """Every stage and every cell is there once, finished and whole, and nothing else."""
    stages, cells = runs(client, "stages"), [run for run in runs(client, "mine") if run.data.tags["stage"] == "cell"]
    assert Counter(run.data.tags["key"] for run in stages) == {f"k{number}": 1 for number in range(count)}
    assert Counter(run.data.tags["cell_key"] for run in cells) == {f"c{number}": 1 for number in range(count)}
    for run in stages:
        assert (run.info.status, run.data.params, run.data.metrics["accuracy"]) == ("FINISHED", {"framework": "fake"}, 0.5)
    for run in cells:
        assert (run.info.status, run.data.metrics) == ("FINISHED", {"accuracy": 0.5})
        assert run.data.params == {"seed": run.data.tags["cell_key"][1:]}
    stage_runs = {run.data.tags["key"]: run.info.run_id for run in stages}
    assert all(run.data.tags["stage_runs"] == stage_runs[run.data.tags["stage_keys"]] for run in cells)
    assert len([run for run in runs(client, "mine") if run.data.tags["stage"] == "sweep"]) == 1


def test_a_second_driver_is_told(tracked):
    told = rf"the store .* is in use by another driver \(sweep mine, process {os.getpid()}\); wait for it to end"
    with pytest.raises(StoreBusy, match=told):
        Ledger(tracked._address)


def test_who_only_reads_shuts_nobody_out_and_is_not_shut_out(tracked):
    """As a plan does, beside a sweep that runs."""
    address = replace(tracked._address, reads_only=True)
    reading = Ledger(address)
    assert reading.call("scan").result() == tracked.call("scan").result()
    assert reading.call("waiting").result() == 0
    assert reading.close() == 0


def test_stages_and_rows_are_written(tracked, tmp_path):
    answers = [opened(tracked, 0), tracked.call("commit_stage", result(tmp_path / "work", 0))]
    assert tracked.call("write_cell", row(0)).result() is True
    assert tracked.call("write_cell", row(0)).result() is False
    assert all(answer.done() for answer in answers)
    assert_complete(client_of(Path(tracked._address.folder) / "mlflow.db"), 1)


def test_a_question_that_can_not_be_answered(tracked):
    with pytest.raises(SweepError, match="write_nothing"):
        tracked.call("write_nothing").result()


def test_a_tracker_that_is_killed_again_and_again_loses_and_doubles_nothing(address, client, tmp_path):
    """Killed while it opens stages, while it commits, and while rows are written; more requests wait than a socket holds."""
    tracked = started(address)
    count = 60
    results = [result(tmp_path / "work", number) for number in range(count)]
    answers = []
    for number in range(count):
        answers.append(opened(tracked, number))
        answers.append(tracked.call("commit_stage", results[number]))
        answers.append(tracked.call("write_cell", row(number)))
    extra = [tracked.call("missing", "/nowhere", "digest") for _ in range(1500)]
    for share in (0.3, 0.7):
        while sum(answer.done() for answer in answers) < share * len(answers):
            time.sleep(0.005)
        os.kill(tracked._process.pid, signal.SIGKILL)
    for answer in answers:
        answer.result(timeout=120)
    assert {answer.result(timeout=120) for answer in extra} == {"/nowhere has no readable manifest.json"}
    assert tracked.close() == 0
    assert_complete(client, count)


def test_thousands_of_questions_at_once_are_answered_in_order(tracked):
    done = []
    answers = [tracked.call("missing", f"/nowhere/{number}", "digest") for number in range(5000)]
    for number, answer in enumerate(answers):
        answer.add_done_callback(lambda _answer, number=number: done.append(number))
        assert answer.result(timeout=60).startswith(f"/nowhere/{number} ")
    assert tracked.backlog == 0
    assert done == list(range(5000))


def test_when_no_tracker_comes_up_every_request_fails(address, monkeypatch):
    tracked = started(address)
    monkeypatch.setattr(ledger, "STARTS", 1)
    Path(address.folder, "mlflow.db").unlink()
    Path(address.folder, "mlflow.db").mkdir()
    os.kill(tracked._process.pid, signal.SIGKILL)
    with pytest.raises(SweepError, match="can't be used: unable to open database file"):
        tracked.call("missing", "/nowhere", "digest").result(timeout=60)
    with pytest.raises(SweepError, match="can't be used"):
        tracked.call("scan").result(timeout=1)


DRIVER = '''
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_ledger as t
if __name__ == "__main__":
    tracked = t.started(t.StoreAddress(**json.loads(sys.argv[2])))
    for number in range(40):
        t.opened(tracked, number)
        tracked.call("commit_stage", t.result(Path(sys.argv[3]), number))
        tracked.call("write_cell", t.row(number))
    print(tracked._process.pid, flush=True)
    os.kill(os.getpid(), 9)
'''


def test_what_was_delivered_is_written_when_the_driver_is_killed(address, client, tmp_path):
    """120 requests are on their way; the tracker writes them all, and the next driver starts after that."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    arguments = [str(Path(__file__).parent), json.dumps(vars(address)), str(tmp_path / "work")]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    driver = subprocess.Popen([sys.executable, str(script), *arguments], stdout=subprocess.PIPE, text=True, env=environment)
    pid = int(driver.stdout.readline())
    driver.stdout.close()
    assert driver.wait(30) == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    with ledger._locked(Path(address.folder), "later"):
        assert_complete(client, 40)


class Store:
    """A tracker in memory whose store is away at times."""

    def __init__(self):
        self.written, self.away, self.refused = [], False, ()

    def scan(self):
        return [argument for _verb, argument in self.written]

    def _write(self, verb, argument):
        if self.away:
            raise OSError("connection refused")
        if argument in self.refused:
            raise ValueError("no such thing")
        self.written.append((verb, argument))

    def __getattr__(self, verb):
        return lambda *arguments: self._write(verb, *arguments)


class Served:
    """A service on such a store, in a thread."""

    def __init__(self, store, spool):
        self.store, (self.ours, theirs) = store, Pipe()
        self._thread = threading.Thread(target=ledger._Service(theirs, store, None, spool).run)
        self._thread.start()
        self._number = 0

    def ask(self, verb, *arguments):
        self._number += 1
        self.ours.send((self._number, verb, arguments))
        number, error, value = self.ours.recv()
        assert number == self._number
        return error or value

    def finish(self):
        left = self.ask("finish")
        self._thread.join()
        return left

    def vanish(self):
        """As a driver that is killed."""
        self.ours.close()
        self._thread.join()


@pytest.fixture
def serve(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "RETRY_SECONDS", 0.05)
    return lambda store: Served(store, tmp_path / "spool.jsonl")


def test_writes_wait_for_a_store_that_is_away_and_go_in_order(serve, tmp_path):
    served = serve(store := Store())
    assert served.ask("commit_stage", "a") is None
    store.away = True
    assert served.ask("commit_stage", "b") is None
    assert served.ask("write_cell", "c") is None
    assert "connection refused" in str(served.ask("question", "d"))  # what is no write is answered
    assert len((tmp_path / "spool.jsonl").read_text().splitlines()) == 2
    store.away = False
    deadline = time.monotonic() + 10
    while len(store.written) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert served.ask("write_cell", "e") is None
    assert served.finish() == 0
    assert store.written == [("commit_stage", "a"), ("commit_stage", "b"), ("write_cell", "c"), ("write_cell", "e")]
    assert not (tmp_path / "spool.jsonl").exists()


def test_what_is_left_at_the_end_is_told_and_delivered_by_the_next_start(serve, tmp_path):
    served = serve(store := Store())
    store.away = True
    record = Result("k", "train", "1", "ok", {"accuracy": float("nan")}, [{"train_loss": 1.0}], {"host": "here"}, digest="d", ended=1.5)
    served.ask("commit_stage", record)
    served.ask("write_cell", row(3))
    assert served.finish() == 2
    later = serve(again := Store())
    found = later.ask("scan")  # the question a driver starts with: what was done counts at once
    assert [type(argument) for argument in found] == [Result, CellRecord]
    assert later.finish() == 0
    (_, came), (_, came_row) = again.written
    assert (came.key, came.curves, came.facts, came.ended) == ("k", [{"train_loss": 1.0}], {"host": "here"}, 1.5)
    assert came.metrics["accuracy"] != came.metrics["accuracy"]
    assert came_row == row(3)
    assert not (tmp_path / "spool.jsonl").exists()


def test_a_driver_that_is_killed_leaves_its_spool(serve, tmp_path):
    served = serve(store := Store())
    store.away = True
    served.ask("write_cell", "a")
    served.vanish()
    later = serve(again := Store())
    later.ask("scan")
    assert later.finish() == 0
    assert again.written == [("write_cell", "a")]


def test_a_line_that_was_cut_off_is_left_out(serve, tmp_path):
    (tmp_path / "spool.jsonl").write_text('["write_cell", ["a"]]\n["write_cell", ["b"')
    served = serve(store := Store())
    served.ask("scan")
    assert served.finish() == 0
    assert store.written == [("write_cell", "a")]


def test_a_write_that_is_refused_for_good_does_not_hold_up_the_rest(serve, capfd):
    served = serve(store := Store())
    store.refused, store.away = ("b",), True
    for argument in "abc":
        served.ask("write_cell", argument)
    store.away = False
    assert served.finish() == 0
    assert store.written == [("write_cell", "a"), ("write_cell", "c")]
    assert "a spooled write_cell was refused for good: no such thing" in capfd.readouterr().out


def test_a_write_that_is_refused_at_once_is_told(serve):
    served = serve(store := Store())
    store.refused = ("b",)
    assert str(served.ask("write_cell", "b")) == "write_cell: no such thing"
    assert served.finish() == 0


def test_what_an_earlier_driver_left_is_counted_and_nothing_is_joined_to_a_line_that_was_cut_off(serve, tmp_path):
    (tmp_path / "spool.jsonl").write_text('["write_cell", ["a"]]\n["write_cell", ["b"')
    served = serve(store := Store())
    store.away = True
    assert served.ask("waiting") == 1
    served.ask("write_cell", "c")
    assert served.ask("waiting") == 2
    assert (tmp_path / "spool.jsonl").read_text() == '["write_cell", ["a"]]\n["write_cell", ["c"]]\n'
    store.away = False
    assert served.finish() == 0
    assert store.written == [("write_cell", "a"), ("write_cell", "c")]


class Tag:
    """A lease as a store has it."""

    def __init__(self, value=""):
        self.value = value

    def get_lease(self):
        return self.value

    def set_lease(self, value):
        self.value = value


@pytest.fixture
def short_leases(monkeypatch):
    monkeypatch.setattr(ledger, "LEASE_SECONDS", 0.3)


def until(condition):
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_a_lease_is_renewed_until_it_is_given_back(short_leases):
    lease = ledger._Lease(tag := Tag(), "me")
    tag.value = "me 1"
    assert until(lambda: tag.value != "me 1")
    owner, end = tag.value.split()
    assert owner == "me"
    assert abs(float(end) - time.time()) < 5
    lease.release()
    assert tag.value == ""


def test_a_lease_that_another_has_taken_is_lost_and_left_to_it(short_leases):
    lease = ledger._Lease(tag := Tag(), "me")
    tag.value = "other 99999999999"
    assert until(lambda: lease.lost)
    lease.release()
    assert tag.value == "other 99999999999"


@pytest.mark.parametrize(("value", "free"), [("other 99999999999", False), ("other 1", True), ("me 99999999999", True), ("", True)])
def test_a_lease_is_had_when_there_is_no_other_that_has_not_run_out(value, free):
    if free:
        ledger._Lease(tag := Tag(value), "me").release()
        assert tag.value == ""
    else:
        with pytest.raises(StoreBusy, match=r"another driver \(other\)"):
            ledger._Lease(Tag(value), "me")


def test_who_has_lost_the_lease_writes_nothing_more(tmp_path):
    ours, theirs = Pipe()
    lease = SimpleNamespace(lost=True, release=lambda: None)
    thread = threading.Thread(target=ledger._Service(theirs, store := Store(), lease, tmp_path / "spool.jsonl").run)
    thread.start()
    ours.send((1, "write_cell", ("a",)))
    _number, error, _value = ours.recv()
    assert isinstance(error, StoreBusy)
    ours.close()
    thread.join()
    assert store.written == []


class Relay:
    """A port in front of a server, that can be closed and opened again."""

    def __init__(self, target):
        self._target = target
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._ends = []

    def open(self):
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            end.close()
        self._ends.clear()

    def _accept(self, listener):
        while True:
            try:
                near, _address = listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pump(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture
def server(database, tmp_path):
    """An MLflow server that serves artifacts, as on a cluster; its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination"]
    command += [str(tmp_path / "served"), "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (tmp_path / "server.txt").open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True,
            env=dict(os.environ, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false", MLFLOW_DISABLE_TELEMETRY="true"),
        )
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            break
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, (tmp_path / "server.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield port
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_server_that_is_away_for_a_while(server, client, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    relay = Relay(server)
    relay.open()
    address = StoreAddress(f"http://127.0.0.1:{relay.port}", None, str(tmp_path), "mine", "me")
    tracked = started(address)
    opened(tracked, 0).result()
    tracked.call("commit_stage", result(tmp_path / "work", 0)).result()
    relay.close()
    opened(tracked, 1)
    tracked.call("commit_stage", result(tmp_path / "work", 1))
    assert tracked.call("write_cell", row(0)).result(timeout=60) is None
    assert len((tmp_path / "spool-mine.jsonl").read_text().splitlines()) == 3
    assert [run.data.tags["key"] for run in runs(client, "stages")] == ["k0"]
    relay.open()
    tracked.call("write_cell", row(1))
    assert tracked.close() == 0  # it delivers what waits before it ends
    assert_complete(client, 2)
    from sweep import artifacts, tracking

    later = tracking.Tracker(address.tracking_uri, None, "mine", "later")
    record = later.scan()["k1"]
    assert later.missing(record.uri, record.digest) is None
    artifacts.fetch(record.uri, tmp_path / "fetched")
    assert (tmp_path / "fetched" / "model.bin").read_text() == "1"
    assert later.missing(record.uri, "another digest") == f"{record.uri} holds other files than were recorded"
    (stored,) = [path for path in (tmp_path / "served").rglob("model.bin") if path.read_text() == "1"]
    stored.write_text("longer")
    assert later.missing(record.uri, record.digest) == f"{record.uri}: model.bin is missing or changed"
    lease = ledger._Lease(later, "later")  # at once: the first gave its own back
    told = r"another driver \(later\) runs a sweep in this store; wait for its end, or up to 60 s after it was killed"
    with pytest.raises(StoreBusy, match=told):  # another sweep's driver too
        ledger._Lease(tracking.Tracker(address.tracking_uri, None, "other", "somebody"), "somebody")
    lease.release()
    relay.close()
