"""What the readers share: finding a file by its name, naming a damaged one, fetching one that is not here."""

import errno
import hashlib
import http.client
import lzma
import os
import pickle
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import BadGzipFile
from pathlib import Path

import numpy as np

_DAMAGE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    EOFError,
    pickle.UnpicklingError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    MemoryError,  # of a size that a damaged header states
)
_SECONDS = 20  # without an answer, so that a machine without a network falls through quickly


def file_named(place: Path, name: str) -> Path | None:
    """`place` itself where it has that name, else the file of that name in it; None where there is neither."""
    candidate = place if place.name == name else place / name
    return candidate if candidate.is_file() else None


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Raise ValueError that names `path` for whatever a damaged or foreign file makes a decoder raise."""
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        # EINVAL: the zip reader seeks to where a damaged directory points
        if isinstance(error, OSError) and not isinstance(error, BadGzipFile) and error.errno != errno.EINVAL:
            raise
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path}: {reason}") from error


def in_turn(labels: np.ndarray) -> np.ndarray:
    """The order that takes one example of each class in turn, so that a prefix of a set sorted by class holds all of them."""
    rank = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        rank[members] = np.arange(len(members))
    return np.argsort(rank, kind="stable")


def fetch(url: str, sha256: str, target: Path) -> Path:
    """Download to `target`, which exists only once the SHA-256 of the whole is right. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    descriptor, partial = tempfile.mkstemp(suffix=".part", prefix=target.name + ".", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file, urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            while block := answer.read(1 << 20):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != sha256:
            raise OSError(f"{url}: SHA-256 is {digest.hexdigest()}, wanted {sha256}")
        Path(partial).replace(target)
    except http.client.HTTPException as error:
        raise OSError(f"{url}: {type(error).__name__}: {error}") from error
    finally:
        Path(partial).unlink(missing_ok=True)
    return target
