"""What a machine does with a stage's files once they are made."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sweep import toolchain
from sweep.errors import StageFailed
from sweep.execution import Site
from sweep.plan import Stage
from sweep.records import Order, Place, Result, Upload, verify, write_manifest
from sweep.work import convert, outcomes

UPLOAD = Upload("http://mlflow:5000", "run 1", "s3://runs/1")


class Files:
    """A store elsewhere; it has been asked for what is in `uploaded`, and refuses where it was told to."""

    def __init__(self, error=None):
        self.error, self.uploaded = error, []

    def upload(self, upload, folder):
        if self.error:
            raise self.error
        self.uploaded.append((upload, sorted(path.name for path in folder.iterdir())))

    def fetch(self, uri, folder):
        raise AssertionError(f"{uri} is on this machine")


@pytest.fixture
def elsewhere():
    """A folder on another file system than the tests' own."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("no second file system")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def make_site():
    sites = []

    def make(cache, files):
        sites.append(Site(cache, keep=1, recycle_bytes=1 << 30, memory_bytes=1 << 30, files=files))
        return sites[-1]

    yield make
    for site in sites:
        site.pool.close()


@pytest.fixture
def made(tmp_path):
    """The result of a stage with a file in a folder below its own."""
    folder = tmp_path / "work" / "1"
    (folder / "saved").mkdir(parents=True)
    (folder / "saved" / "model.bin").write_bytes(b"weights")
    return Result("k", "train", "1", "ok", digest=write_manifest(folder), folder=str(folder))


def test_uploaded_files_are_kept_for_what_comes_next_here_across_file_systems(make_site, made, elsewhere):
    assert elsewhere.stat().st_dev != Path(made.folder).stat().st_dev
    site = make_site(elsewhere / "cache", files := Files())
    result = site._uploaded(UPLOAD, made)
    assert files.uploaded == [(UPLOAD, ["manifest.json", "saved"])]
    assert (result.status, result.folder, result.digest) == ("ok", None, made.digest)
    assert not Path(made.folder).exists()
    kept = Path(site._located(Place(made.digest, None, "s3://runs/1")))
    assert kept.is_relative_to(elsewhere)
    assert (kept / "saved" / "model.bin").read_bytes() == b"weights"
    assert verify(kept, made.digest, content=True) is None
    assert [path.name for path in kept.parent.iterdir()] == [made.digest]  # and nothing half


def test_a_failed_upload_is_a_failure_of_the_tracking(make_site, made, tmp_path):
    site = make_site(tmp_path / "cache", Files(OSError("connection refused")))
    result = site._uploaded(UPLOAD, made)
    assert (result.status, result.failure_class) == ("failed", "tracking_failed")
    assert result.message == "the stage's files could not be uploaded: connection refused"
    assert result.folder is None  # the driver, which is elsewhere, need not look for it
    assert not Path(made.folder).exists()
    assert not (tmp_path / "cache" / "fetched").exists()


def test_a_failure_names_files_and_not_where_this_machine_had_them(make_site, made, tmp_path, monkeypatch):
    def refuse(work):
        raise StageFailed("convert_failed", f"ValueError: {work.inputs['model']}/model.onnx: no Loop; see {work.folder}/log.txt")

    monkeypatch.setattr(convert, "run", refuse)
    stage = Stage("convert", {"toolchain": toolchain.DEFAULT}, {"model": "k"}, "c", "convert")
    order = Order(stage, "2", str(tmp_path / "work" / "2"), {"model": Place(made.digest, made.folder)}, None, 1, 60.0, 0)
    result = make_site(tmp_path / "cache", Files()).run(order)
    assert (result.status, result.failure_class) == ("failed", "convert_failed")
    assert result.message == "ValueError: model.onnx: no Loop; see log.txt"


def test_outcomes_are_a_table_with_a_row_for_each_input(tmp_path):
    outcomes.write(tmp_path, {"index": np.array([7, 9]), "correct": np.array([True, False]), "margin": np.array([0.5, -1], np.float32)})
    table = pd.read_parquet(tmp_path / "outcomes.parquet")
    assert table.to_dict("list") == {"index": [7, 9], "correct": [True, False], "margin": [0.5, -1.0]}
