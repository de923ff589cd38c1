"""Reviews become rows of ids: what a word is, which id it gets, every known source, and what a damaged or hostile one does."""

import gzip
import io
import json
import os
import pickle
import tarfile
import zipfile

import numpy as np
import pytest

from sweep import components, data
from sweep.contracts import Source
from sweep.datasets import _imdb_words
from sweep.inputs import read_inputs, read_labels

IMDB = components.load("datasets", "imdb")

REVIEWS = {
    "aclImdb/train/neg/0_1.txt": "Bad,<br /><br />BAD film.",
    "aclImdb/train/neg/10_2.txt": "It's bad: a café... 'quoted'",
    "aclImdb/train/neg/2_3.txt": "film",
    "aclImdb/train/pos/0_9.txt": "A good film! A_b",
    "aclImdb/train/pos/1_10.txt": "",
    "aclImdb/test/neg/3_4.txt": "unseen bad",
    "aclImdb/test/pos/7_8.txt": "a good good good film it's",
}
OTHERS = {"aclImdb/train/unsup/0_0.txt": "nobody's", "aclImdb/imdb.vocab": "the", "aclImdb/train/pos/urls.txt": "http", "aclImdb/train/x.feat": "1"}
# By hand: bad 3 times, a 3 (2 of them in "A good film! A_b", whose "A_b" is two words), film 3, then good, b, café, it's, quoted once each.
WORDS = ["<padding>", "<start>", "<unknown>", "", "a", "bad", "film", "b", "café", "good", "it's", "quoted"]
A, BAD, FILM, B, CAFE, GOOD, ITS, QUOTED = range(4, 12)


def packed(path, contents, mode="w:gz", change=lambda info: None):
    with tarfile.open(path, mode) as archive:
        for name, text in contents.items():
            info, content = tarfile.TarInfo(name), text.encode() if isinstance(text, str) else text
            info.size = len(content)
            change(info)
            archive.addfile(info, io.BytesIO(content))
    return path


def unpacked(folder, contents):
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / "aclImdb"


def read(place, **settings):
    return IMDB.read(IMDB.find([place], False), **settings)


def test_words():
    assert _imdb_words.split("It's <br />the DOG'S 2nd; ' a_b x'' 'tis naïve—no") == [
        "it's", "the", "dog's", "2nd", "a", "b", "x", "tis", "naïve", "no",
    ]


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("aclimdb-folder", lambda folder: unpacked(folder, OTHERS | REVIEWS)),
        ("aclimdb-archive", lambda folder: packed(folder / "aclImdb_v1.tar.gz", OTHERS | REVIEWS)),
        ("aclimdb-archive", lambda folder: packed(folder / "imdb.tar.xz", dict(reversed(REVIEWS.items())), "w:xz")),
    ],
    ids=["folder", "gz", "xz"],
)
def test_reviews_are_in_a_fixed_order_and_ids_follow_from_the_training_set(kind, write, tmp_path):
    path = write(tmp_path)
    assert IMDB.find([tmp_path / "absent", tmp_path], False) == IMDB.find([path], False) == Source(kind, path)
    arrays = read(tmp_path, length=5, vocabulary=12)
    assert arrays["words"].tolist() == WORDS
    assert arrays["x_train"].dtype == np.int32
    assert arrays["x_train"].tolist() == [  # by number, one of each class in turn
        [0, 1, BAD, BAD, FILM],  # neg/0
        [A, GOOD, FILM, A, B],  # pos/0: five words leave no room for the start
        [0, 0, 0, 1, FILM],  # neg/2
        [0, 0, 0, 0, 1],  # pos/1 is empty
        [ITS, BAD, A, CAFE, QUOTED],  # neg/10
    ]
    assert arrays["y_train"].tolist() == [0, 1, 0, 1, 0]
    assert arrays["x_test"].tolist() == [[0, 0, 1, 2, BAD], [GOOD, GOOD, GOOD, FILM, ITS]]
    assert arrays["y_test"].tolist() == [0, 1]


def test_a_small_vocabulary_makes_rare_words_unknown_and_a_large_one_has_ids_without_words(tmp_path):
    unpacked(tmp_path, REVIEWS)
    small, large = read(tmp_path, length=3, vocabulary=6), read(tmp_path, length=3, vocabulary=20)
    assert small["words"].tolist() == WORDS[:6]
    assert small["x_train"].tolist() == [[BAD, BAD, 2], [2, A, 2], [0, 1, 2], [0, 0, 1], [A, 2, 2]]
    assert large["words"].tolist() == WORDS + [""] * 8
    with pytest.raises(ValueError, match="vocabulary is 4; the first 4 ids are no words"):
        read(tmp_path, vocabulary=4)


def test_test_reviews_do_not_shape_the_vocabulary(tmp_path):
    changed = REVIEWS | {"aclImdb/test/pos/7_8.txt": "zebra zebra zebra zebra"}
    arrays = read(unpacked(tmp_path, changed), length=5, vocabulary=12)
    assert arrays["words"].tolist() == WORDS
    assert arrays["x_test"][1].tolist() == [1, 2, 2, 2, 2]


# Keras' file

RANKS = {"train": [[1, 3, 2], [], [9, 1]], "test": [[2] * 7, [4]]}


def keras(folder, x=RANKS, y=None, **more):
    y = y or {"train": [1, 0, 1], "test": [0, 1]}
    arrays = {}
    for part in ("train", "test"):
        stored = np.empty(len(x[part]), object)
        stored[:] = x[part]
        arrays |= {"x_" + part: stored, "y_" + part: np.array(y[part])}
    np.savez(folder / "imdb.npz", **arrays | more)
    return folder / "imdb.npz"


def test_keras_ranks_become_keras_ids(tmp_path):
    path = keras(tmp_path)
    assert IMDB.find([tmp_path], False) == IMDB.find([path], False) == Source("keras-npz", path)
    arrays = read(tmp_path, length=4, vocabulary=7)
    # as keras.datasets.imdb.load_data(num_words=7) and pad_sequences(maxlen=4) have it: start 1, unknown 2, rank + 3
    assert arrays["x_train"].tolist() == [[1, 4, 6, 5], [0, 0, 0, 1], [0, 1, 2, 4]]
    assert arrays["x_test"].tolist() == [[5, 5, 5, 5], [0, 0, 1, 2]]
    assert arrays["y_train"].tolist() == [1, 0, 1]
    assert arrays["words"].tolist() == ["<padding>", "<start>", "<unknown>", "", "", "", ""]
    (tmp_path / "imdb_word_index.json").write_text(json.dumps({"and": 2, "the": 1, "a": 3, "of": 4}))
    assert read(tmp_path, length=4, vocabulary=7)["words"].tolist() == ["<padding>", "<start>", "<unknown>", "", "the", "and", "a"]


class Calls:
    def __init__(self, function, argument):
        self.call = function, (argument,)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("call", [(os.mkdir, "{}/ran"), (eval, "__import__('os').mkdir('{}/ran')")], ids=["os", "eval"])
def test_a_malicious_npz_is_refused_and_not_run(call, tmp_path):
    function, argument = call
    keras(tmp_path, RANKS | {"test": [[1], Calls(function, argument.format(tmp_path))]})
    with pytest.raises(ValueError, match=r"imdb\.npz: x_test: refused: the pickle asks for"):
        read(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[1], [2, 0], [3]], [0, 1, 0], "x_train: a review is a list of ranks from 1"),
        ([[1], [True], [3]], [0, 1, 0], "x_train: a review is a list of ranks from 1"),
        ([[1], [2.5, 1], [3]], [0, 1, 0], "x_train: a review is a list of ranks from 1"),
        ([[1], "ab", [3]], [0, 1, 0], "x_train: a review is a list of ranks from 1"),
        ([[1], [1, 2], [3]], [0, 1], r"y_train: labels int64 \(2,\) for 3 reviews"),
        ([[1], [1, 2], [3]], [0, 0.5, 1], r"y_train: labels float64 \(3,\) for 3 reviews"),
    ],
)
def test_ranks_and_labels_that_are_none_are_named(x, y, message, tmp_path):
    keras(tmp_path, RANKS | {"train": x}, {"train": y, "test": [0, 1]})
    with pytest.raises(ValueError, match=rf"imdb\.npz: {message}"):
        read(tmp_path)


def test_an_npz_of_another_kind_is_named(tmp_path):
    np.savez(tmp_path / "imdb.npz", x_train=np.zeros((3, 4), np.int64))
    with pytest.raises(ValueError, match=r"imdb\.npz: x_train: an array of int64 \(3, 4\), wanted one list"):
        read(tmp_path)
    keras(tmp_path, x_train=pickle.dumps([[1]]))
    with pytest.raises(ValueError, match=r"imdb\.npz: x_train: "):
        read(tmp_path)
    with zipfile.ZipFile(keras(tmp_path)) as archive, zipfile.ZipFile(tmp_path / "fewer.npz", "w") as fewer:
        fewer.writestr("x_train.npy", archive.read("x_train.npy"))
    (tmp_path / "fewer.npz").replace(tmp_path / "imdb.npz")
    with pytest.raises(ValueError, match=r"imdb\.npz: y_train: .*y_train\.npy"):
        read(tmp_path)


@pytest.mark.parametrize("content", ["[1]", '{"the": 2}', '{"the": "1"}', "{"])
def test_a_damaged_word_index_is_named(content, tmp_path):
    keras(tmp_path)
    (tmp_path / "imdb_word_index.json").write_text(content)
    with pytest.raises(ValueError, match=r"imdb_word_index\.json: "):
        read(tmp_path)


# Damage


@pytest.mark.parametrize("name", ["aclImdb_v1.tar.gz", "imdb.tar.xz", "imdb.npz"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_a_truncated_file_is_named(name, share, tmp_path):
    texts = REVIEWS | {f"aclImdb/train/pos/{n}_7.txt": os.urandom(60).hex() for n in range(100, 120)}
    path = keras(tmp_path) if name == "imdb.npz" else packed(tmp_path / name, texts, "w:" + name[-2:])
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(ValueError, match=name):
        read(tmp_path)


def test_a_damaged_member_in_the_middle_is_no_end(tmp_path):
    plain = gzip.decompress(packed(tmp_path / "aclImdb_v1.tar.gz", REVIEWS).read_bytes())
    where = plain.index(b"aclImdb/train/pos/0_9.txt")
    for harmed in (plain[:where] + b"#" + plain[where + 1:], plain[:where] + bytes(512) + plain[where + 512:]):
        (tmp_path / "aclImdb_v1.tar.gz").write_bytes(gzip.compress(harmed))
        with pytest.raises(ValueError, match=r"aclImdb_v1\.tar\.gz: a damaged member in the middle"):
            read(tmp_path)


def test_a_missing_class_a_second_number_and_a_foreign_encoding_are_named(tmp_path):
    fewer = {name: text for name, text in REVIEWS.items() if "test/neg" not in name}
    packed(tmp_path / "imdb.tar.gz", fewer)
    with pytest.raises(ValueError, match=r"imdb\.tar\.gz: no reviews in test/neg"):
        read(tmp_path)
    packed(tmp_path / "imdb.tar.gz", REVIEWS | {"aclImdb/test/pos/7_9.txt": "again"})
    with pytest.raises(ValueError, match=r"test/pos/7_\*\.txt is there twice"):
        read(tmp_path)
    packed(tmp_path / "imdb.tar.gz", REVIEWS | {"aclImdb/test/pos/7_8.txt": b"caf\xe9"})
    with pytest.raises(ValueError, match=r"imdb\.tar\.gz: test/pos/7_\*\.txt: 'utf-8' codec"):
        read(tmp_path)


@pytest.mark.parametrize("member", ["../outside.txt", "/outside.txt", "aclImdb/../../outside.txt", "aclImdb/train/pos/../../../x"])
def test_a_member_outside_is_refused_and_nothing_is_written(member, tmp_path):
    packed(tmp_path / "aclImdb_v1.tar.gz", REVIEWS | {member: "x"})
    with pytest.raises(ValueError, match="unsafe member"):
        read(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["aclImdb_v1.tar.gz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_member_that_is_no_file_is_refused(kind, tmp_path):
    def change(info):
        if info.name.endswith("7_8.txt"):
            info.type, info.linkname, info.size = kind, "/etc/passwd", 0

    packed(tmp_path / "aclImdb_v1.tar.gz", REVIEWS, change=change)
    with pytest.raises(ValueError, match="unsafe member"):
        read(tmp_path)


def test_a_link_and_a_huge_review_are_refused(tmp_path):
    folder = unpacked(tmp_path, REVIEWS)
    (folder / "train/pos/5_7.txt").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match=r"train/pos/5_7\.txt is no review"):
        read(tmp_path)
    packed(tmp_path / "imdb.tar.gz", REVIEWS | {"aclImdb/train/pos/5_7.txt": b"x" * ((1 << 20) + 1)})
    with pytest.raises(ValueError, match=r"train/pos/5_7\.txt is no review"):
        read(tmp_path / "imdb.tar.gz")


# Prepared


def test_prepared_texts_state_their_vocabulary_and_settings_make_another_set(tmp_path):
    unpacked(tmp_path, REVIEWS)
    settings = {"length": 5, "vocabulary": 12}
    prepared = data.prepare("imdb", path=tmp_path, settings=settings, cache=tmp_path / "cache")
    assert (prepared.shape, prepared.vocabulary, prepared.n_train, prepared.n_test) == ((5,), 12, 5, 2)
    assert np.load(prepared.folder / "words.npy").tolist() == WORDS
    some = read_inputs(prepared.folder, "train", np.array([2, 0]))
    assert some.dtype == np.int32
    assert some.flags.writeable
    assert some.tolist() == [[0, 0, 0, 1, FILM], [0, 1, BAD, BAD, FILM]]
    assert read_labels(prepared.folder, "test").tolist() == [0, 1]
    assert data.prepare("imdb", path=tmp_path, settings=settings, cache=tmp_path / "cache") == prepared
    shorter = data.prepare("imdb", path=tmp_path, settings=settings | {"length": 4}, cache=tmp_path / "cache")
    assert shorter.shape == (4,)
    assert len({shorter.digest, prepared.digest}) == len({shorter.folder, prepared.folder}) == 2


def test_the_words_are_part_of_the_digest(tmp_path):
    """A word that becomes another one everywhere leaves every id as it is."""
    unpacked(tmp_path / "one", REVIEWS)
    unpacked(tmp_path / "other", {name: text.replace("quoted", "quoth") for name, text in REVIEWS.items()})
    both = [
        data.prepare("imdb", path=tmp_path / name, settings={"length": 5, "vocabulary": 12}, cache=tmp_path / "cache")
        for name in ("one", "other")
    ]
    assert np.array_equal(*(read_inputs(prepared.folder, "train") for prepared in both))
    assert both[0].digest != both[1].digest


def test_words_that_were_harmed_are_written_again(tmp_path):
    unpacked(tmp_path, REVIEWS)
    first = data.prepare("imdb", path=tmp_path, cache=tmp_path / "cache")
    os.truncate(first.folder / "words.npy", 100)
    assert data.prepare("imdb", path=tmp_path, cache=tmp_path / "cache") == first
    assert np.load(first.folder / "words.npy")[:12].tolist() == WORDS
