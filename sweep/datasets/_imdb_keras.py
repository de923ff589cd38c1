"""Keras' imdb.npz: lists of ranks, which NumPy stores as pickles, and beside it imdb_word_index.json where it is there."""

import json
import zipfile
from pathlib import Path

import numpy as np

from sweep.contracts import Source
from sweep.datasets import _pickled_arrays
from sweep.datasets._files import file_named, reading

KIND = "keras-npz"
_WORDS = "imdb_word_index.json"
_LARGEST = 512 << 20  # bytes of one member; the real ones have some 35 MB
_LONGEST = 100  # characters of a word

_Reviews = dict[str, list[list[int]]]


def find(place: Path) -> Source | None:
    path = file_named(place, "imdb.npz")
    return Source(KIND, path) if path else None


def read(path: Path) -> tuple[_Reviews, dict[str, np.ndarray], list[str]]:
    """Reviews as ranks (from 1) and labels, int64, of `train` and `test`, and the words by rank ("" where one is not known).

    Nothing that the pickles name is called. Raises ValueError that names the file.
    """
    reviews, labels = {}, {}
    with reading(path), zipfile.ZipFile(path) as archive:
        for part in ("train", "test"):
            with reading(f"x_{part}"):
                reviews[part] = _lists(_member(archive, f"x_{part}.npy"))
            with reading(f"y_{part}"), archive.open(f"y_{part}.npy") as file:
                stated = np.lib.format.read_array(file, allow_pickle=False)
                if stated.dtype.kind not in "iu" or stated.shape != (len(reviews[part]),):
                    raise ValueError(f"labels {stated.dtype} {stated.shape} for {len(reviews[part])} reviews")
                labels[part] = stated.astype(np.int64)
    index = path.with_name(_WORDS)
    return reviews, labels, _words(index) if index.is_file() else []


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The pickle in an .npy file of objects."""
    size = archive.getinfo(name).file_size
    if size > _LARGEST:
        raise ValueError(f"{size} bytes are too many")
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"an .npy file of version {version}")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.kind != "O" or len(shape) != 1:
            raise ValueError(f"an array of {dtype} {shape}, wanted one list of ranks for each review")
        return file.read()


def _lists(content: bytes) -> list[list[int]]:
    reviews = _pickled_arrays.load(content).content
    if type(reviews) is not list:
        raise ValueError("an array without its objects")
    for review in reviews:
        if type(review) is not list or not all(type(rank) is int and 0 < rank < 1 << 31 for rank in review):
            raise ValueError("a review is a list of ranks from 1")
    return reviews


def _words(path: Path) -> list[str]:
    with reading(path):
        index = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(index, dict) or not all(type(rank) is int and 0 < rank <= len(index) for rank in index.values()):
            raise ValueError("wanted the rank of each word, from 1 to the number of words")
        words = [""] * len(index)
        for word, rank in index.items():
            words[rank - 1] = word if len(word) <= _LONGEST else ""
    return words
