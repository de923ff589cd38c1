"""The idx format of MNIST and of the sets that copy its layout, plain or gzipped."""

import gzip
import hashlib
import re
from pathlib import Path

import numpy as np

from sweep.contracts import Source
from sweep.datasets._files import reading

_PREFIX = {"train": "train", "test": "t10k"}
_FULL_TEST = 10_000


def find(place: Path, subfolders: tuple[str, ...], test_labels: str) -> Source | None:
    """The first of `place` and its `subfolders` with idx files of this set.

    Several sets use the same file names; a full test set whose labels have another SHA-256 than `test_labels` is one of the others.
    """
    for folder in (place, *(place / name for name in subfolders)):
        if folder.is_dir() and _file(folder, "train", "images") and not _is_another(folder, test_labels):
            return Source("idx", folder)
    return None


def read(folder: Path) -> dict[str, np.ndarray]:
    """The four arrays. Raises ValueError that names the file which is missing or damaged."""
    arrays = {}
    for part in _PREFIX:
        images, labels = (_array(folder, part, content) for content in ("images", "labels"))
        arrays["x_" + part], arrays["y_" + part] = images[..., np.newaxis], labels.astype(np.int64)
    return arrays


def _file(folder: Path, part: str, content: str) -> Path | None:
    dimensions = {"images": 3, "labels": 1}[content]
    wanted = re.compile(rf"{_PREFIX[part]}-{content}[-.]idx{dimensions}-ubyte(\.gz)?")
    return min((path for path in folder.iterdir() if wanted.fullmatch(path.name)), default=None)


def _array(folder: Path, part: str, content: str) -> np.ndarray:
    path = _file(folder, part, content)
    if path is None:
        raise ValueError(f"{folder}: the {part} {content} are missing ({_PREFIX[part]}-{content}-idx*-ubyte[.gz])")
    opened = gzip.open if path.suffix == ".gz" else open
    with reading(path), opened(path, "rb") as file:
        rank = {"images": 3, "labels": 1}[content]
        header = file.read(4 + 4 * rank)
        if header[:4] != bytes([0, 0, 8, rank]) or len(header) < 4 + 4 * rank:
            raise ValueError(f"no idx header of {rank}-dimensional unsigned bytes")
        shape = tuple(int(extent) for extent in np.frombuffer(header, ">u4", offset=4))
        size = int(np.prod(shape, dtype=object))
        body = file.read(size + 1)
        if len(body) != size:
            raise ValueError(f"the header states {size} bytes, the file holds {'more' if len(body) > size else len(body)}")
        return np.frombuffer(body, np.uint8).reshape(shape)


def _is_another(folder: Path, test_labels: str) -> bool:
    try:
        labels = _array(folder, "test", "labels")
    except ValueError:
        return False  # damaged: `read` says how
    return len(labels) == _FULL_TEST and hashlib.sha256(labels.tobytes()).hexdigest() != test_labels
