"""The folder where decoded data sets, facts and toolchains are kept between sweeps."""

import os
import tempfile
from pathlib import Path

from sweep.errors import StoreUnavailable


def cache_folder() -> Path:
    """SWEEP_CACHE, else `sweep` in the user's cache folder. Raises StoreUnavailable where it can't be written."""
    folder = Path(os.environ.get("SWEEP_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sweep").absolute()
    writable(folder)
    return folder


def writable(folder: Path) -> None:
    """Make a folder where there is none. Raises StoreUnavailable where it can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StoreUnavailable(f"the output folder {folder} can't be written: {error.strerror}") from None
