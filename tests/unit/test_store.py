"""Where a ledger is, made absolute, and tried before any work."""

from pathlib import Path

import pytest

from sweep import cache, store
from sweep.errors import StoreUnavailable


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def addressed(make_sweep, **fields):
    return store.address(make_sweep(store=fields), "me")


def test_a_database_file(make_sweep, here):
    found = addressed(make_sweep)
    assert found.tracking_uri == f"sqlite:///{here}/mlruns/mlflow.db"
    assert found.artifacts == (here / "mlruns" / "artifacts").as_uri()
    assert (found.folder, found.sweep, found.owner) == (str(here / "mlruns"), "test", "me")


def test_an_absolute_path_and_artifacts_elsewhere(make_sweep, here):
    found = addressed(make_sweep, tracking_uri=f"sqlite:///{here}/a b/x.db", artifacts="kept #1")
    assert found.tracking_uri == f"sqlite:///{here}/a b/x.db"
    assert found.artifacts == f"file://{here}/kept%20%231"
    assert (here / "kept #1").is_dir()
    assert addressed(make_sweep, artifacts="s3://bucket/runs").artifacts == "s3://bucket/runs"


def test_a_server(make_sweep, here):
    found = addressed(make_sweep, tracking_uri="http://mlflow:5000")
    assert (found.tracking_uri, found.artifacts, found.folder) == ("http://mlflow:5000", None, str(here / "mlruns"))


def test_what_is_neither(make_sweep, here):
    with pytest.raises(StoreUnavailable, match=r"store.tracking_uri: 'mlruns' is neither a database file \(sqlite:///path\) nor a server"):
        addressed(make_sweep, tracking_uri="mlruns")


@pytest.mark.parametrize("fields", [{"tracking_uri": "sqlite:////proc/out/mlflow.db"}, {"artifacts": "/proc/out"}])
def test_folders_that_can_not_be_written(make_sweep, here, fields):
    with pytest.raises(StoreUnavailable, match="the output folder /proc/out can't be written: No such file or directory"):
        addressed(make_sweep, **fields)


def test_a_file_in_the_place_of_a_folder(make_sweep, here):
    (here / "mlruns").write_text("")
    with pytest.raises(StoreUnavailable, match=f"the output folder {here}/mlruns can't be written: File exists"):
        addressed(make_sweep)


def test_the_cache(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home"))
    monkeypatch.delenv("SWEEP_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_folder() == here / "home" / ".cache" / "sweep"
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "xdg"))
    assert cache.cache_folder() == here / "xdg" / "sweep"
    monkeypatch.setenv("SWEEP_CACHE", "own")
    assert cache.cache_folder() == here / "own"
    assert Path("own").is_dir()
    monkeypatch.setenv("SWEEP_CACHE", "/proc/own")
    with pytest.raises(StoreUnavailable, match="the output folder /proc/own can't be written"):
        cache.cache_folder()
