"""Data sets, ready for workers: found, decoded once into memory-mappable .npy files, divided into fixed lists of indices.

Where they are looked for, and what becomes of them:

    explicit path │ SWEEP_DATA ─► own cache ─► known places ─► download ─► subset where allowed
                  └─► Source ─► read ─► cache/<name>/<key>/{x,y}_{train,test}.npy, meta.json ─► Prepared ─► splits
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sweep.datasets
from sweep import components
from sweep.contracts import Dataset, Source
from sweep.errors import DataUnavailable

PARTS = ("x_train", "y_train", "x_test", "y_test")
SPLIT_SEED = 2019  # of the lists below; not the seed of a training

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A decoded data set."""

    name: str
    folder: Path  # of the .npy files: uint8 (N, H, W, C) and int64 (N,)
    source_kind: str
    source_path: Path
    licence: str
    citation: str
    digest: str  # SHA-256 of the decoded arrays
    shape: tuple[int, int, int]
    classes: list[str]
    n_train: int
    n_test: int


@dataclass(frozen=True, eq=False)
class Splits:
    """Lists of indices, int64."""

    train: np.ndarray  # with `validation`, all of the training set
    validation: np.ndarray
    calibration: np.ndarray  # a part of `train`
    attack: np.ndarray  # of the test set

    @property
    def digest(self) -> str:
        return _digest({name: getattr(self, name) for name in ("train", "validation", "calibration", "attack")})


def prepare(name: str, *, path: Path | str | None = None, allow_subset: bool = False, cache: Path) -> Prepared:
    """Find, decode and check a data set; what was decoded before from the same, unchanged source is reused.

    `path` is a folder or file, and then the only place that counts. A subset counts only where allowed and after a download has failed.
    Raises DataUnavailable where there are no data, ValueError that names the file where they are damaged, KeyError for an unknown name.
    """
    dataset: Dataset = components.load("datasets", name)
    home = cache.absolute() / name
    with _locked(home):
        source = _find(dataset, name, path, allow_subset, home / "download")
        folder = home / _source_key(source)
        meta = _believable(folder) or _decode(dataset, source, folder)
    return Prepared(
        name=name,
        folder=folder,
        source_kind=source.kind,
        source_path=source.path,
        licence=dataset.LICENCE,
        citation=dataset.CITATION,
        digest=meta["digest"],
        shape=dataset.SHAPE,
        classes=list(dataset.CLASSES),
        n_train=meta["n_train"],
        n_test=meta["n_test"],
    )


def splits(
    labels_train: np.ndarray, n_test: int, seed: int = SPLIT_SEED, validation: int = 5000, calibration: int = 500, attack: int = 1000
) -> Splits:
    """The fixed lists, drawn without a look at the images.

    `validation` indices are drawn from the training set, `calibration` from what remains, each class by its share (largest remainders).
    Neither takes more than a tenth of the training set. `attack` indices of the test set (at most all) are the start of one
    permutation, so that fewer are a prefix of more.
    """
    count = len(labels_train)
    held_out = np.sort(_permutation(seed, 1, count)[: min(validation, count // 10)])
    train = np.setdiff1d(np.arange(count, dtype=np.int64), held_out)
    drawn = train[_permutation(seed, 2, len(train))]
    chosen = _stratified(labels_train[drawn], min(calibration, count // 10))
    return Splits(train=train, validation=held_out, calibration=drawn[chosen], attack=_permutation(seed, 3, n_test)[:attack])


def _permutation(seed: int, purpose: int, count: int) -> np.ndarray:
    # RandomState, since NumPy freezes its stream for good: the lists are part of every key
    return np.random.RandomState([seed, purpose]).permutation(count).astype(np.int64)


def _stratified(labels: np.ndarray, size: int) -> np.ndarray:
    """Ascending positions of the first members of each class, as many as its share of `size`."""
    classes, counts = np.unique(labels, return_counts=True)
    quotas, remainders = np.divmod(size * counts, counts.sum())
    quotas[np.argsort(-remainders, kind="stable")[: size - quotas.sum()]] += 1
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:quota] for label, quota in zip(classes, quotas, strict=True)]))


def _find(dataset: Dataset, name: str, path: Path | str | None, allow_subset: bool, downloads: Path) -> Source:
    if path is not None:
        place = Path(path).expanduser().absolute()
        source = dataset.find([place], allow_subset)
        if source is None or not source.path.is_relative_to(place):
            raise DataUnavailable(f"{name}: no data in the path that was given, {place}. {dataset.WANTED}")
        return source
    folders, shared = [downloads], os.environ.get("SWEEP_DATA")
    if shared:
        folders.insert(0, Path(shared).expanduser().absolute())
        if not folders[0].is_dir():
            raise DataUnavailable(f"{name}: SWEEP_DATA={shared} is no folder")
    source = dataset.find(folders, False)
    if source is not None:
        return source
    try:
        for leftover in downloads.glob("*.part"):  # of a download that was killed; the lock says that none is under way
            leftover.unlink()
        return dataset.download(downloads)
    except OSError as error:
        source = dataset.find([], True) if allow_subset else None
        if source is not None:
            _log.warning("%s: the download failed (%s); going on with the subset %s, %s", name, error, source.kind, source.path)
            return source
        looked = ", ".join(str(folder) for folder in folders) + ("" if shared else " (SWEEP_DATA is not set)")
        raise DataUnavailable(f"{name}: no data in {looked}, and the download failed ({error}). {dataset.WANTED}") from error


def _source_key(source: Source) -> str:
    """Another kind, place, file size or time, or another reader, is another key."""
    digest = hashlib.sha256(f"{source.kind} {source.path}\n".encode())
    files = [source.path]
    if source.path.is_dir():  # known layouts are flat or in two splits; the folder may hold much else
        files = [*source.path.glob("*"), *source.path.glob("train/*/*"), *source.path.glob("test/*/*")]
    for file in sorted(files):
        if file.is_file():
            stat = file.stat()
            digest.update(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    for reader in [Path(__file__), *sorted(Path(sweep.datasets.__path__[0]).glob("*.py"))]:
        digest.update(reader.read_bytes())
    return digest.hexdigest()[:16]


def _believable(folder: Path) -> dict[str, Any] | None:
    """What `_decode` recorded, where its files are still those it wrote."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        return meta if meta["files"] == _stamps(folder) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _decode(dataset: Dataset, source: Source, folder: Path) -> dict[str, Any]:
    arrays = dataset.read(source)
    _check(arrays, dataset, source.path)
    for leftover in folder.parent.glob("*.part"):  # of a driver that was killed; the lock says that none is at work
        shutil.rmtree(leftover)
    partial = Path(tempfile.mkdtemp(suffix=".part", dir=folder.parent))
    for part in PARTS:
        with (partial / f"{part}.npy").open("wb") as file:
            np.save(file, arrays[part], allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    meta = {
        "source_kind": source.kind,
        "source_path": str(source.path),
        "digest": _digest({part: arrays[part] for part in PARTS}),
        "n_train": len(arrays["y_train"]),
        "n_test": len(arrays["y_test"]),
        "files": _stamps(partial),
    }
    (partial / "meta.json").write_text(json.dumps(meta, indent=1))
    if folder.exists():  # not believed
        shutil.rmtree(folder)
    partial.rename(folder)
    return meta


def _check(arrays: dict[str, np.ndarray], dataset: Dataset, path: Path) -> None:
    for part in ("train", "test"):
        images, labels = arrays["x_" + part], arrays["y_" + part]
        if images.dtype != np.uint8 or images.shape[1:] != tuple(dataset.SHAPE):
            raise ValueError(f"{path}: the {part} images are {images.dtype} {images.shape[1:]}, wanted uint8 {tuple(dataset.SHAPE)}")
        if labels.dtype != np.int64 or labels.shape != images.shape[:1] or not len(labels):
            raise ValueError(f"{path}: {len(images)} {part} images for labels {labels.dtype} {labels.shape}")
        if labels.min() < 0 or labels.max() >= len(dataset.CLASSES):
            raise ValueError(f"{path}: {part} labels reach from {labels.min()} to {labels.max()}, wanted 0 to {len(dataset.CLASSES) - 1}")


def _stamps(folder: Path) -> dict[str, list[int]]:
    stats = {part: (folder / f"{part}.npy").stat() for part in PARTS}
    return {part: [stat.st_size, stat.st_mtime_ns] for part, stat in stats.items()}


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One process at a time decodes a data set; the kernel frees the lock of one that is killed."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
