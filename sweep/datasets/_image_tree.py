"""Images as files: `train/<class>/*` and `test/<class>/*`, PNG or JPEG, in a folder or a zip (with or without one folder around)."""

import io
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from sweep.contracts import Source
from sweep.datasets._files import in_turn, reading

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_LARGEST = 1 << 20  # bytes of one stored image; ours are a few thousand


def find(place: Path, name: str, classes: list[str]) -> Source | None:
    """`place` itself, or a folder or zip in it whose name begins with the set's. JPEG is a kind of its own: it is not the original."""
    candidates = [place]
    if place.is_dir():
        candidates += sorted(path for path in place.iterdir() if _plain(path.name).startswith(_plain(name)))
    for path in candidates:
        formats = _formats(path, classes)
        if formats:
            return Source(f"{name.replace('_', '-')}-jpeg" if "JPEG" in formats else "image-folder", path)
    return None


def read(path: Path, shape: tuple[int, int, int], classes: list[str]) -> dict[str, np.ndarray]:
    """The four arrays, one image of each class in turn. Raises ValueError that names the member which is missing, foreign or damaged."""
    with reading(path):
        if path.is_dir():
            return _decoded(_listed(path), lambda member: (path / member).read_bytes(), shape, classes)
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.file_size > _LARGEST:
                    raise ValueError(f"{info.filename} is no image of this set: {info.file_size} bytes")
            return _decoded(archive.namelist(), archive.read, shape, classes)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _listed(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for split in ("train", "test") for path in (folder / split).glob("*/*")]


def _images(members: list[str]) -> Iterator[tuple[str, str, str]]:
    """(member, split, class) of every visible image, by name."""
    for member in sorted(members):  # strings, not paths: there are 60,000
        parts = member.split("/")
        if _suffix(member) in _FORMATS and not parts[-1].startswith(".") and parts[-3:-2] in [["train"], ["test"]]:
            yield member, parts[-3], parts[-2]


def _suffix(member: str) -> str:
    return posixpath.splitext(member)[1].lower()


def _formats(path: Path, classes: list[str]) -> set[str]:
    """The image formats of a tree with both splits and only this set's classes; empty for anything else."""
    if (path / "train").is_dir():
        members = _listed(path)
    elif path.suffix == ".zip" and path.is_file():
        with reading(path), zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    else:
        return set()
    images = list(_images(members))
    names, folders = {_plain(name) for name in classes}, {folder for _, _, folder in images}
    if {split for _, split, _ in images} != {"train", "test"} or not {_plain(folder) for folder in folders} <= names:
        return set()
    return {_FORMATS[_suffix(member)] for member, _, _ in images}


def _decoded(
    members: list[str], read_bytes: Callable[[str], bytes], shape: tuple[int, int, int], classes: list[str]
) -> dict[str, np.ndarray]:
    numbers = {_plain(name): number for number, name in enumerate(classes)}
    images = list(_images(members))
    if len({member.rsplit("/", 3)[0] for member, _, _ in images if member.count("/") > 2}) > 1:
        raise ValueError("several trees of images")
    arrays = {}
    for part in ("train", "test"):
        chosen = [(member, numbers[_plain(folder)]) for member, split, folder in images if split == part]
        missing = set(numbers.values()) - {number for _, number in chosen}
        if missing:
            raise ValueError(f"no images in {part}/ of {', '.join(classes[number] for number in sorted(missing))}")
        labels = np.array([number for _, number in chosen], np.int64)
        order = in_turn(labels)
        pixels = np.empty((len(chosen), *shape), np.uint8)
        for row, source in enumerate(order):
            member = chosen[source][0]
            pixels[row] = _pixels(member, read_bytes(member), shape)
        arrays["x_" + part], arrays["y_" + part] = pixels, labels[order]
    return arrays


def _pixels(name: str, encoded: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    from PIL import Image  # only this layout needs Pillow

    height, width, channels = shape
    try:
        with Image.open(io.BytesIO(encoded), formats=sorted(set(_FORMATS.values()))) as image:
            if image.size != (width, height):
                raise ValueError(f"{image.size[0]}x{image.size[1]} pixels, wanted {width}x{height}")
            return np.asarray(image.convert("L" if channels == 1 else "RGB")).reshape(shape)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name}: {error}") from error
