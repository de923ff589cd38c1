"""The reviews as files, `aclImdb/{train,test}/{neg,pos}/<number>_<stars>.txt`, in their folder or their archive."""

import gzip
import lzma
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from sweep.contracts import Source
from sweep.datasets._files import in_turn, reading

FOLDER, ARCHIVE = "aclimdb-folder", "aclimdb-archive"
_ROOT = "aclImdb"
_LABELS = {"neg": 0, "pos": 1}
_PARTS = ("train", "test")
_REVIEW = re.compile(r"(\d+)_\d+\.txt")
_ARCHIVE = re.compile(r"(aclImdb|imdb).*\.(tar\.gz|tgz|tar\.xz)")
_LARGEST = 1 << 20  # bytes of one review; the longest of the real ones has 14,000

_Found = tuple[str, str, int, bytes]  # train or test, neg or pos, the review's number, its text in UTF-8


def find(place: Path) -> Source | None:
    """`place` itself, or the folder or an archive in it."""
    for folder in (place, place / _ROOT):
        if all((folder / part).is_dir() for part in _PARTS) and any((folder / "train" / label).is_dir() for label in _LABELS):
            return Source(FOLDER, folder)
    for path in sorted(place.iterdir()) if place.is_dir() else [place]:
        if _ARCHIVE.fullmatch(path.name) and path.is_file():
            return Source(ARCHIVE, path)
    return None


def read(path: Path) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Texts and labels, int64, of `train` and `test`, by number, one of each class in turn.

    Nothing is written to disk. Raises ValueError that names the file or member which is damaged or should not be there.
    """
    found: dict[tuple[str, str], dict[int, str]] = {(part, label): {} for part in _PARTS for label in _LABELS}
    with reading(path):
        for part, label, number, content in _from_folder(path) if path.is_dir() else _from_archive(path):
            name = f"{part}/{label}/{number}_*.txt"
            if number in found[part, label]:
                raise ValueError(f"{name} is there twice")
            with reading(name):
                found[part, label][number] = content.decode("utf-8")
    missing = [f"{part}/{label}" for part, label in found if not found[part, label]]
    if missing:
        raise ValueError(f"{path}: no reviews in {', '.join(missing)}")
    texts, labels = {}, {}
    for part in _PARTS:
        known = [(_LABELS[label], text) for label in _LABELS for _, text in sorted(found[part, label].items())]
        classes = np.array([label for label, _ in known], np.int64)
        order = in_turn(classes)
        texts[part], labels[part] = [known[index][1] for index in order], classes[order]
    return texts, labels


def _from_folder(folder: Path) -> Iterator[_Found]:
    for part in _PARTS:
        for label in _LABELS:
            for path in (folder / part / label).glob("*"):
                named = _REVIEW.fullmatch(path.name)
                if named:
                    if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST:
                        raise ValueError(f"{part}/{label}/{path.name} is no review: a link, no file, or larger than {_LARGEST} bytes")
                    yield part, label, int(named[1]), path.read_bytes()


def _from_archive(path: Path) -> Iterator[_Found]:
    with (lzma.open if path.suffix == ".xz" else gzip.open)(path, "rb") as file:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts or not (member.isfile() or member.isdir()):
                    raise ValueError(f"unsafe member {member.name!r}")
                named = _REVIEW.fullmatch(name.name)
                if named and len(name.parts) == 4 and name.parts[0] == _ROOT and name.parts[1] in _PARTS and name.parts[2] in _LABELS:
                    content = archive.extractfile(member)
                    if content is None or member.size > _LARGEST:
                        raise ValueError(f"{member.name} is no review: {member.size} bytes")
                    yield name.parts[1], name.parts[2], int(named[1]), content.read()
        _ended(file)


def _ended(file: lzma.LZMAFile | gzip.GzipFile) -> None:
    """The reader of archives takes a damaged header for the end; what follows the real end is zeros, and then the checksum is right."""
    while block := file.read(1 << 20):
        if block.strip(b"\0"):
            raise ValueError("a damaged member in the middle")
