"""Data sets, ready for workers: found, decoded once into memory-mappable .npy files, divided into fixed lists of indices.

Where they are looked for, and what becomes of them:

    explicit path │ SWEEP_DATA ─► own cache ─► known places ─► download ─► subset where allowed
                  └─► Source ─► read ─► cache/<name>/<key>/{x,y}_{train,test}.npy, meta.json ─► Prepared ─► splits

Texts have a fifth array, words.npy: what each id of their vocabulary stands for.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
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
    folder: Path  # of the .npy files: uint8 (N, H, W, C) or int32 (N, T), and int64 (N,)
    source_kind: str
    source_path: Path
    licence: str
    citation: str
    digest: str  # SHA-256 of the decoded arrays
    shape: tuple[int, ...]  # of one input: (H, W, C) or (T,)
    vocabulary: int | None  # how many token ids there are; None for images
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


def prepare(
    name: str, *, path: Path | str | None = None, allow_subset: bool = False, settings: Mapping[str, int] | None = None, cache: Path
) -> Prepared:
    """Find, decode and check a data set; what was decoded before from the same, unchanged source with the same settings is reused.

    `path` is a folder or file, and then the only place that counts. A subset counts only where allowed and after a download has failed.
    Raises DataUnavailable where there are no data, ValueError that names the file where they are damaged, KeyError for an unknown name.
    """
    dataset: Dataset = components.load("datasets", name)
    chosen = {**dataset.SETTINGS, **(settings or {})}
    home = cache.absolute() / name
    with _locked(home):
        source = _find(dataset, name, path, allow_subset, home / "download")
        folder = home / _source_key(source, chosen)
        meta = _believable(folder) or _decode(dataset, source, chosen, folder)
    return Prepared(
        name=name,
        folder=folder,
        source_kind=source.kind,
        source_path=source.path,
        licence=dataset.LICENCE,
        citation=dataset.CITATION,
        digest=meta["digest"],
        shape=_input(dataset, chosen)[1],
        vocabulary=chosen["vocabulary"] if dataset.INPUT == "tokens" else None,
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


def _source_key(source: Source, settings: Mapping[str, int]) -> str:
    """Another kind, place, file size or time, other settings, or another reader, is another key."""
    digest = hashlib.sha256(f"{source.kind} {source.path} {sorted(settings.items())}\n".encode())
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
        return meta if meta["files"] == _stamps(folder, meta["files"]) and {*PARTS} <= {*meta["files"]} else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _decode(dataset: Dataset, source: Source, settings: Mapping[str, int], folder: Path) -> dict[str, Any]:
    arrays = dataset.read(source, **settings)
    _check(arrays, dataset, settings, source.path)
    arrays = {part: arrays[part] for part in (*PARTS, *sorted(arrays.keys() - {*PARTS}))}  # in one order, for the digest
    for leftover in folder.parent.glob("*.part"):  # of a driver that was killed; the lock says that none is at work
        shutil.rmtree(leftover)
    partial = Path(tempfile.mkdtemp(suffix=".part", dir=folder.parent))
    for part, array in arrays.items():
        with (partial / f"{part}.npy").open("wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    meta = {
        "source_kind": source.kind,
        "source_path": str(source.path),
        "settings": dict(settings),
        "digest": _digest(arrays),
        "n_train": len(arrays["y_train"]),
        "n_test": len(arrays["y_test"]),
        "files": _stamps(partial, arrays),
    }
    (partial / "meta.json").write_text(json.dumps(meta, indent=1))
    if folder.exists():  # not believed
        shutil.rmtree(folder)
    partial.rename(folder)
    return meta


def _input(dataset: Dataset, settings: Mapping[str, int]) -> tuple[str, tuple[int, ...]]:
    """Stored dtype and shape of one input."""
    return ("int32", (settings["length"],)) if dataset.INPUT == "tokens" else ("uint8", tuple(dataset.SHAPE))


def _check(arrays: dict[str, np.ndarray], dataset: Dataset, settings: Mapping[str, int], path: Path) -> None:
    kind, (dtype, shape) = dataset.INPUT, _input(dataset, settings)
    for part in ("train", "test"):
        inputs, labels = arrays["x_" + part], arrays["y_" + part]
        if inputs.dtype != dtype or inputs.shape[1:] != shape:
            raise ValueError(f"{path}: the {part} {kind} are {inputs.dtype} {inputs.shape[1:]}, wanted {dtype} {shape}")
        if labels.dtype != np.int64 or labels.shape != inputs.shape[:1] or not len(labels):
            raise ValueError(f"{path}: {len(inputs)} {part} {kind} for labels {labels.dtype} {labels.shape}")
        if labels.min() < 0 or labels.max() >= len(dataset.CLASSES):
            raise ValueError(f"{path}: {part} labels reach from {labels.min()} to {labels.max()}, wanted 0 to {len(dataset.CLASSES) - 1}")
        if kind == "tokens" and (inputs.min() < 0 or inputs.max() >= settings["vocabulary"]):
            raise ValueError(f"{path}: {part} ids from {inputs.min()} to {inputs.max()}, wanted 0 to {settings['vocabulary'] - 1}")
    if kind == "tokens" and (arrays["words"].dtype.kind != "U" or arrays["words"].shape != (settings["vocabulary"],)):
        raise ValueError(f"{path}: words are {arrays['words'].dtype} {arrays['words'].shape} for {settings['vocabulary']} ids")


def _stamps(folder: Path, parts: Iterable[str]) -> dict[str, list[int]]:
    stats = {part: (folder / f"{part}.npy").stat() for part in parts}
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
