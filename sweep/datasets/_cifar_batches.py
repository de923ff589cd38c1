"""CIFAR's batches: pickles of the Python version and records of the binary one, in their folder or their tar.gz."""

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from sweep.contracts import Source
from sweep.datasets import _pickled_arrays
from sweep.datasets._files import file_named, reading

_PIXELS = 3 * 32 * 32  # a row: the red plane, the green, the blue
_LARGEST = 64 << 20  # bytes of one batch; the real ones have 31 MB


def find(place: Path) -> Source | None:
    for layout in _LAYOUTS:
        for folder in (place, place / layout.folder):
            if any((folder / name).is_file() for name in layout.batches):
                return Source(layout.kind, folder)
        archive = file_named(place, layout.archive)
        if archive:
            return Source(layout.kind, archive)
    return None


def read(source: Source) -> dict[str, np.ndarray]:
    """The four arrays. Nothing is written to disk and nothing that a pickle names is called. Raises ValueError that names the batch."""
    layout = next(layout for layout in _LAYOUTS if layout.kind == source.kind)
    opened = _from_folder if source.path.is_dir() else _from_archive
    found = {}
    for name, content in opened(source.path, layout):
        with reading(source.path / name):
            found[name] = layout.decode(content)
    missing = [name for name in layout.batches if name not in found]
    if missing:
        raise ValueError(f"{source.path}: {', '.join(missing)} missing")
    batches = [found[name] for name in layout.batches]
    return {
        "x_train": np.concatenate([pixels for pixels, _ in batches[:-1]]),
        "y_train": np.concatenate([labels for _, labels in batches[:-1]]),
        "x_test": batches[-1][0],
        "y_test": batches[-1][1],
    }


def _from_folder(folder: Path, layout: "_Layout") -> Iterator[tuple[str, bytes]]:
    for name in layout.batches:
        if (folder / name).is_file():
            yield name, (folder / name).read_bytes()


def _from_archive(path: Path, layout: "_Layout") -> Iterator[tuple[str, bytes]]:
    with reading(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts or not (member.isfile() or member.isdir()):
                raise ValueError(f"unsafe member {member.name!r}")
            if name.parent == PurePosixPath(layout.folder) and name.name in layout.batches:
                file = archive.extractfile(member)
                if file is None or member.size > _LARGEST:
                    raise ValueError(f"{member.name} is no batch: {member.size} bytes")
                yield name.name, file.read()


def _from_pickle(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    batch = _pickled_arrays.load(content)
    stored, labels = batch[b"data"], batch[b"labels"]
    if stored.code not in (b"u1", "u1"):
        raise ValueError(f"an array of {stored.code!r}, wanted unsigned bytes")
    rows = np.frombuffer(stored.content, np.uint8).reshape(stored.shape, order="F" if stored.fortran else "C")
    if rows.ndim != 2 or len(rows) != len(labels) or not all(type(label) is int for label in labels):
        raise ValueError("the data are not one row for each label")
    return _images(rows), np.array(labels, np.int64)


def _from_records(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    if not content or len(content) % (1 + _PIXELS):
        raise ValueError(f"{len(content)} bytes are no whole number of records of {1 + _PIXELS}")
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return _images(records[:, 1:]), records[:, 0].astype(np.int64)


def _images(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


class _Layout(NamedTuple):
    kind: str
    folder: str
    archive: str
    batches: list[str]  # five of the training set, then the test set
    decode: Callable[[bytes], tuple[np.ndarray, np.ndarray]]


_NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
_LAYOUTS = (
    _Layout("cifar-python", "cifar-10-batches-py", "cifar-10-python.tar.gz", _NAMES, _from_pickle),
    _Layout("cifar-binary", "cifar-10-batches-bin", "cifar-10-binary.tar.gz", [name + ".bin" for name in _NAMES], _from_records),
)
