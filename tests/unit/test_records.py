"""Manifests, and what counts as a folder that still is what was recorded."""

import hashlib
import json
import os

import pytest

from sweep import records


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "stage"
    (made / "saved" / "deep").mkdir(parents=True)
    (made / "model.bin").write_bytes(b"weights")
    (made / "saved" / "deep" / "graph.pb").write_bytes(b"graph")
    (made / "log.txt").write_text("started\n")
    (made / "result.json").write_text("{}")
    return made


def sha(content):
    return hashlib.sha256(content).hexdigest()


def test_a_manifest_lists_every_file_and_its_digest_stands_for_what_was_made(folder):
    digest = records.write_manifest(folder)
    assert json.loads((folder / "manifest.json").read_text()) == {
        "log.txt": [8, sha(b"started\n")], "model.bin": [7, sha(b"weights")], "result.json": [2, sha(b"{}")],
        "saved/deep/graph.pb": [5, sha(b"graph")],
    }
    made = json.dumps({"model.bin": sha(b"weights"), "saved/deep/graph.pb": sha(b"graph")}, sort_keys=True)
    assert digest == sha(made.encode())[:32]
    assert records.verify(folder, digest, content=True) is None


def test_how_a_stage_went_is_no_part_of_the_digest(folder):
    digest = records.write_manifest(folder)
    (folder / "log.txt").write_text("another attempt, another log\n")
    (folder / "result.json").write_text('{"seconds": 3}')
    assert records.write_manifest(folder) == digest


def test_a_log_may_grow_after_its_stage(folder):
    """A warm worker's own words go to the log of the stage that it was started for."""
    digest = records.write_manifest(folder)
    with (folder / "log.txt").open("a") as log:
        log.write("said between two stages\n")
    assert records.verify(folder, digest, content=True) is None
    (folder / "log.txt").unlink()
    assert records.verify(folder, digest, content=True) == f"{folder / 'log.txt'} is missing"


def test_what_makes_a_folder_unusable(folder, tmp_path):
    digest = records.write_manifest(folder)
    model = folder / "model.bin"
    model.write_bytes(b"longer weights")
    assert records.verify(folder, digest, content=False) == f"{model} has changed"
    model.write_bytes(b"WEIGHTS")  # of the same size
    assert records.verify(folder, digest, content=False) is None
    assert records.verify(folder, digest, content=True) == f"{model} has changed"
    model.unlink()
    assert records.verify(folder, digest, content=False) == f"{model} is missing"
    records.write_manifest(folder)
    assert records.verify(folder, digest, content=False) == f"{folder} holds other files than were recorded"
    (folder / "manifest.json").write_text("{")
    assert records.verify(folder, digest, content=False) == f"{folder} has no readable manifest.json"
    assert records.verify(tmp_path / "nowhere", digest, content=False) == f"{tmp_path / 'nowhere'} has no readable manifest.json"


@pytest.mark.parametrize(("uri", "path"), [
    ("file:///a/b%20c", "/a/b c"), ("/a/b%20c#1", "/a/b%20c#1"), ("mlflow-artifacts:/1/2", None), ("s3://bucket/a", None),
    ("http://host/a", None),
])
def test_which_artifacts_are_on_this_machine(uri, path):
    found = records.local_folder(uri)
    assert found is None if path is None else os.fspath(found) == path
