"""Fashion-MNIST: pictures of clothes, 60,000 for training and 10,000 for test, 28x28 grey."""

from pathlib import Path

import numpy as np

from sweep.contracts import Source
from sweep.datasets import _idx, _image_tree
from sweep.datasets._files import fetch

INPUT = "images"
SHAPE = (28, 28, 1)
SETTINGS: dict[str, int] = {}
CLASSES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
LICENCE = "MIT"
CITATION = "Xiao et al., Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms, arXiv:1708.07747, 2017"
WANTED = (
    "Wanted: train-images-idx3-ubyte[.gz] and its three companions, also in fashion_mnist/, fashion-mnist/ or FashionMNIST/raw/, "
    "or Debian's package dataset-fashion-mnist."
)

_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_URL = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
_SHA256 = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_TEST_LABELS = "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9"


def find(folders: list[Path], allow_subset: bool) -> Source | None:
    """See `sweep.contracts.Dataset`. No subset is known; Debian's package is looked at last."""
    for folder in [*folders, _DEBIAN]:
        source = _idx.find(folder, ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"), _TEST_LABELS)
        source = source or _image_tree.find(folder, "fashion_mnist", CLASSES)
        if source:
            return source
    return None


def read(source: Source) -> dict[str, np.ndarray]:
    return _idx.read(source.path) if source.kind == "idx" else _image_tree.read(source.path, SHAPE, CLASSES)


def download(folder: Path) -> Source:
    for name, sha256 in _SHA256.items():
        fetch(_URL + name, sha256, folder / name)
    return Source("idx", folder)
