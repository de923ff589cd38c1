"""What a machine does with a stage's files once they are made."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sweep.execution import Site
from sweep.records import Place, Result, Upload, verify, write_manifest
from sweep.work import outcomes

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


def test_outcomes_are_a_table_with_a_row_for_each_input(tmp_path):
    outcomes.write(tmp_path, {"index": np.array([7, 9]), "correct": np.array([True, False]), "margin": np.array([0.5, -1], np.float32)})
    table = pd.read_parquet(tmp_path / "outcomes.parquet")
    assert table.to_dict("list") == {"index": [7, 9], "correct": [True, False], "margin": [0.5, -1.0]}
