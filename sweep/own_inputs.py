"""A user's own inputs, an .npz file, in the layout of a prepared data set, so that all stages read them as they read any.

    inputs        float32, int32 or int64 (N, ...), as the model takes them: what is evaluated, measured and attacked
    labels        integers (N,) from 0; without them nothing is said of accuracy
    calibration   as `inputs`, (M, ...): what calibrated conversions take their ranges from; without them, some of `inputs`
"""

import hashlib
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sweep.data import SPLIT_SEED, Prepared, Splits
from sweep.errors import ConfigError
from sweep.inputs import UNLABELLED

INPUTS, LABELS, CALIBRATION = "inputs", "labels", "calibration"
TYPES = ("float32", "int32", "int64")
LARGEST_BYTES = 8 << 30
CALIBRATION_INPUTS = 500  # of `inputs`, where there is no `calibration`


def prepare(path: Path | str, cache: Path) -> tuple[Prepared, Splits]:
    """The arrays of a file, decoded once into `cache`, with its index lists.

    The lists for training and calibration are of `calibration`, or of `inputs` where there is none, which `source_kind` says. Raises
    ConfigError, one line, for a file that can't be read or holds something else.
    """
    file = Path(path).expanduser().absolute()
    digest = _file_digest(file)
    folder = cache / "inputs" / digest[:32]
    if not folder.is_dir():
        _write(_checked(file, _read(file)), folder)
    given, labels = (np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("x_test", "y_test"))
    calibration = np.load(folder / "y_train.npy", mmap_mode="r", allow_pickle=False)
    own = (folder / "own_calibration").exists()
    classes = int(labels.max()) + 1 if labels[0] != UNLABELLED else 0
    prepared = Prepared(
        name=str(path),
        folder=folder,
        source_kind="npz" if own else "npz, calibrated on its own inputs",
        source_path=file,
        licence="the user's own",
        citation="",
        digest=digest,
        shape=tuple(given.shape[1:]),
        vocabulary=None,
        classes=[str(number) for number in range(classes)],
        n_train=len(calibration),
        n_test=len(given),
    )
    return prepared, _splits(len(calibration), len(given), own)


def input_type(prepared: Prepared) -> str:
    """The type of a prepared data set's inputs as stages read them."""
    stored = np.load(prepared.folder / "x_test.npy", mmap_mode="r", allow_pickle=False).dtype
    return "float32" if stored == np.uint8 else stored.name


def _splits(n_train: int, n_test: int, own: bool) -> Splits:
    everything = np.arange(n_train, dtype=np.int64)
    drawn = np.random.RandomState([SPLIT_SEED, 2]).permutation(n_train)[:CALIBRATION_INPUTS]
    attacked = np.random.RandomState([SPLIT_SEED, 3]).permutation(n_test)
    return Splits(everything, everything[:0], everything if own else np.sort(drawn).astype(np.int64), attacked.astype(np.int64))


def _file_digest(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"inputs: can't read {file}: {error.strerror}") from None


def _read(file: Path) -> dict[str, np.ndarray]:
    """The arrays of the file, none of which is unpickled."""
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > LARGEST_BYTES:
            raise ConfigError(f"inputs: {file} has {unpacked / 2**30:.1f} GiB unpacked; inputs may have {LARGEST_BYTES >> 30}")
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, MemoryError) as error:
        raise ConfigError(f"inputs: {file} is no .npz file that can be read: {' '.join(str(error).split())}") from None


def _checked(file: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if INPUTS not in arrays:
        raise ConfigError(f"inputs: {file} has no array {INPUTS!r}; it has {', '.join(sorted(arrays)) or 'none'}")
    if unknown := sorted(arrays.keys() - {INPUTS, LABELS, CALIBRATION}):
        raise ConfigError(f"inputs: {file} has an array {unknown[0]!r}; known are {INPUTS}, {LABELS} and {CALIBRATION}")
    given = arrays[INPUTS]
    for name in (INPUTS, CALIBRATION):
        if name in arrays:
            _check_inputs(file, name, arrays[name], given)
    if LABELS in arrays:
        labels = arrays[LABELS]
        if labels.shape != given.shape[:1] or labels.dtype.kind not in "iu" or labels.min() < 0:
            raise ConfigError(f"inputs: {file}: labels are whole numbers from 0, one for each input, not {labels.dtype} {labels.shape}")
    return arrays


def _check_inputs(file: Path, name: str, array: np.ndarray, given: np.ndarray) -> None:
    if array.dtype.name not in TYPES:
        raise ConfigError(f"inputs: {file}: {name} are {array.dtype}; a model takes {' or '.join(TYPES)}")
    if not array.ndim or not array.size:
        raise ConfigError(f"inputs: {file}: {name} of shape {array.shape} are none")
    if array.shape[1:] != given.shape[1:] or array.dtype != given.dtype:
        raise ConfigError(f"inputs: {file}: {name} are {array.dtype} {array.shape[1:]}, and {INPUTS} {given.dtype} {given.shape[1:]}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"inputs: {file}: {name} hold a value that is no finite number")


def _write(arrays: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write the layout of `sweep.data` and rename it into place; another process may have been faster."""
    given, own = arrays[INPUTS], CALIBRATION in arrays
    labels = arrays[LABELS].astype(np.int64) if LABELS in arrays else np.full(len(given), UNLABELLED, np.int64)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(suffix=".part", dir=folder.parent))
    written = {"x_test": given, "y_test": labels, "x_train": arrays[CALIBRATION] if own else given}
    written["y_train"] = np.full(len(arrays[CALIBRATION]), UNLABELLED, np.int64) if own else labels
    for name, array in written.items():
        np.save(partial / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
    if own:
        (partial / "own_calibration").touch()
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)
        if not folder.is_dir():
            raise
