"""CIFAR-10: small photographs, 50,000 for training and 10,000 for test, 32x32 colour."""

from pathlib import Path

import numpy as np

from sweep.contracts import Source
from sweep.datasets import _cifar_batches, _image_tree
from sweep.datasets._files import fetch

INPUT = "images"
SHAPE = (32, 32, 3)
SETTINGS: dict[str, int] = {}
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
LICENCE = "none stated"
CITATION = "Krizhevsky, Learning multiple layers of features from tiny images, technical report, University of Toronto, 2009"
WANTED = (
    "Wanted: cifar-10-batches-py/ or cifar-10-python.tar.gz, cifar-10-batches-bin/ or cifar-10-binary.tar.gz, "
    "or images as train/<class>/* and test/<class>/* in a folder or zip named cifar10*."
)

_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"


def find(folders: list[Path], allow_subset: bool) -> Source | None:
    """See `sweep.contracts.Dataset`. No subset is known."""
    for folder in folders:
        source = _cifar_batches.find(folder) or _image_tree.find(folder, "cifar10", CLASSES)
        if source:
            return source
    return None


def read(source: Source) -> dict[str, np.ndarray]:
    if source.kind.startswith("cifar-"):
        return _cifar_batches.read(source)
    return _image_tree.read(source.path, SHAPE, CLASSES)


def download(folder: Path) -> Source:
    return Source("cifar-python", fetch(_URL, _SHA256, folder / "cifar-10-python.tar.gz"))
