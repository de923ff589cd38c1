"""The command on bad input: exit status 2, one clear message, and nothing was started."""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
SECONDS = 60.0
VALID = {
    "name": "bad",
    "grid": {"framework": ["fake"], "dataset": ["synthetic"], "architecture": ["linear"], "runtime": ["fake"]},
    "train": {"epochs": 1},
    "measure": {"enabled": False},
}


class Command:
    """`python -m sweep.launch sweep.yaml ...` in a folder of its own, at its end."""

    def __init__(self, folder, cache, text, arguments):
        if text is not None:
            (folder / "sweep.yaml").write_text(text)
        self.folder, mark = folder, f"TEST_MARK={uuid.uuid4().hex}"
        environment = {name: value for name, value in os.environ.items() if name != "SWEEP_DATA"}
        environment |= {"SWEEP_CACHE": str(cache), "PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(folder / "ray")} | dict([mark.split("=")])
        (folder / "ray").mkdir()
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "sweep.launch", "sweep.yaml", *arguments], cwd=folder, env=environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=SECONDS, check=False,
        )
        self.seconds = time.monotonic() - started
        self.status, self.output, self.errors = done.returncode, done.stdout, done.stderr
        self.left = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and mark.encode() in _environment(entry)]

    @property
    def message(self):
        """The one message. Asserts that it is one, and that nothing has started."""
        assert self.status == 2, self.output + self.errors
        assert self.errors.startswith("sweep: ")
        assert len(self.errors.splitlines()) == 1, self.errors
        assert not self.left
        assert list((self.folder / "ray").iterdir()) == [], "Ray was started"
        assert not list(self.folder.glob("mlruns/work/*")), "work was begun"
        return self.errors.removeprefix("sweep: ").rstrip("\n")


def _environment(entry):
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.fixture
def command(tmp_path, cache):
    def run(*arguments, text=None, **changes):
        return Command(tmp_path, cache, yaml.safe_dump(VALID | changes) if text is None else text, arguments)

    return run


def runs(folder):
    """Runs in a store, of any kind; none where there is no store."""
    if not (folder / "mlruns" / "mlflow.db").exists():
        return []
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlruns/mlflow.db")
    return client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])


@pytest.mark.parametrize(("arguments", "message"), [
    (["trian.epochs=1"], "sweep.yaml: there is no key 'trian'; did you mean 'train'?"),
    (["train.epoch=1"], "sweep.yaml: there is no key 'train.epoch'; did you mean 'epochs'?"),
    (["data.synthetic.pth=x"], "sweep.yaml: there is no key 'data.synthetic.pth'; did you mean 'path'?"),
    (["grid.framework=[fakee]"], "sweep.yaml: grid.framework: there is no 'fakee'; did you mean 'fake'?"),
    (["train.epochs=two"], "sweep.yaml: train.epochs: input should be a valid integer, not 'two'"),
    (["grid.seed=[]"], "sweep.yaml: grid.seed is empty"),
    (["epochs"], "an override is key=value, not 'epochs'"),
    (["store.tracking_uri=nowhere"],
     "store.tracking_uri: 'nowhere' is neither a database file (sqlite:///path) nor a server (http:// or https://)"),
    (["store.tracking_uri=sqlite:////proc/out/mlflow.db"], "the output folder /proc/out can't be written: No such file or directory"),
    (["store.artifacts=/proc/out"], "the output folder /proc/out can't be written: No such file or directory"),
])
def test_what_is_wrong_is_told(command, arguments, message):
    done = command(*arguments)
    assert done.message == message
    assert done.output == ""
    assert runs(done.folder) == []


@pytest.mark.parametrize(("text", "message"), [
    ("", "sweep.yaml is empty"),
    ("name: [a\n", "sweep.yaml is not valid YAML: "),
    ("- name\n", "sweep.yaml must be a mapping of keys, not a list"),
])
def test_files_that_are_no_sweep(command, text, message):
    assert command(text=text).message.startswith(message)


def test_files_that_can_not_be_read(tmp_path, cache):
    assert Command(tmp_path, cache, None, []).message == "can't read sweep.yaml: No such file or directory"
    (tmp_path / "ray").rmdir()
    (tmp_path / "sweep.yaml").mkdir()
    assert Command(tmp_path, cache, None, []).message == "can't read sweep.yaml: Is a directory"


def test_a_file_in_the_place_of_the_output_folder(command, tmp_path):
    (tmp_path / "mlruns").write_text("")
    assert command().message == f"the output folder {tmp_path}/mlruns can't be written: File exists"


def test_missing_data(command, database, tmp_path):
    (tmp_path / "empty").mkdir()
    done = command("grid.dataset=[mnist]", f"data.mnist.path={tmp_path}/empty")
    assert done.message.startswith(f"mnist: no data in the path that was given, {tmp_path}/empty. Wanted: ")
    assert runs(done.folder) == []


def test_damaged_data(command, database, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist.npz").write_bytes(b"no archive")
    message = command("grid.dataset=[mnist]", f"data.mnist.path={tmp_path}/data").message
    assert message.startswith("data.mnist: ")
    assert "mnist.npz" in message


def test_a_tracking_server_that_does_not_answer(command):
    done = command("store.tracking_uri=http://127.0.0.1:9")
    assert done.message.startswith("store.tracking_uri: 'http://127.0.0.1:9' can't be used: ")
    assert done.seconds < 45  # 7 on a quiet machine


def test_a_database_that_is_none(command, tmp_path):
    (tmp_path / "mlruns").mkdir()
    (tmp_path / "mlruns" / "mlflow.db").write_text("no database " * 100)
    assert command().message.endswith("can't be used: file is not a database")


def test_options_that_a_component_does_not_have(command, database):
    done = command(options={"fake": {"fautls": {}}})
    assert done.message == "options.fake: there is no 'fautls'; did you mean 'faults'?"
    assert runs(done.folder) == []


def test_an_attack_that_leaves_its_ball(command, database):
    done = command(grid=VALID["grid"] | {"attack": ["pgd"]}, settings={"attack": {"pgd": {"eps": 0.001}}})
    assert done.message.startswith("settings.attack: attack pgd on synthetic: eps_step")
    assert runs(done.folder) == []


def test_what_is_not_bad_input_is_planned_and_nothing_more(command):
    """The same sweep without a mistake: what the tests above rest on."""
    done = command("--plan")
    assert (done.status, done.errors, done.left) == (0, "", [])
    assert "sweep bad: 1 cells, 0 of them skipped" in done.output
    assert runs(done.folder) == []
