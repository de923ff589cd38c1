"""A user's own model file, before a sweep starts: which format it has, what it says of itself, and whether the inputs suit it."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep import components, toolchain
from sweep.errors import ConfigError, Raised, StageFailed
from sweep.stages.adopt import misfit
from sweep.workers import Limits, Pool, Shape

LIMITS = Limits(seconds=300.0, memory_bytes=16 << 30)


@dataclass(frozen=True)
class OwnModel:
    """A file as it was found. `details` are those of `sweep.stages.adopt.inspect`, digest included."""

    path: str
    format: str
    details: dict[str, Any]
    failure_class: str = ""  # why it can't be used; "" where it can
    message: str = ""


def recognise(path: Path | str) -> str:
    """The format that a file's content, else its name, says it has. Raises ConfigError where that is none or more than one."""
    file = Path(path)
    if not file.exists():
        raise ConfigError(f"model: there is no {path}")
    formats = {name: components.load("formats", name) for name in components.names("formats")}
    found = [name for name, module in formats.items() if module.recognise(file)]
    if not found and file.is_file():
        found = [name for name, module in formats.items() if file.suffix.lower() in module.FACTS["suffixes"]]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"model: {path} may be {' or '.join(found)}")
    raise ConfigError(f"model: {path} has none of the formats that can be read: {', '.join(formats)}")


def examined(models: Mapping[str, str]) -> dict[str, OwnModel]:
    """What a worker finds in files, whose formats are known."""
    pool = Pool(keep=1, recycle_bytes=0)
    try:
        return {path: _examine(path, model_format, pool) for path, model_format in models.items()}
    finally:
        pool.close()


def examine(path: Path | str, pool: Pool, log: Path | None = None) -> OwnModel:
    """What a worker finds in a file. That it is damaged, holds what is refused, or ends the worker, is in the result.

    Raises ConfigError where its format is unknown.
    """
    return _examine(path, recognise(path), pool, log)


def _examine(path: Path | str, model_format: str, pool: Pool, log: Path | None = None) -> OwnModel:
    file = str(Path(path).expanduser().absolute())
    with tempfile.TemporaryDirectory() as folder:
        log = log or Path(folder) / "log.txt"
        try:
            with pool.borrow(Shape(toolchain.default()), log) as worker:
                arguments = {"path": file, "model_format": model_format}
                details, _arrays = worker.call("sweep.stages.adopt:inspect", arguments, LIMITS, log)
        except Raised as raised:
            failure_class = "env_unavailable" if raised.kind in ("ImportError", "ModuleNotFoundError") else "load_failed"
            return OwnModel(file, model_format, {}, failure_class, raised.message.removeprefix("ValueError: "))
        except StageFailed as failure:
            return OwnModel(file, model_format, {}, failure.failure_class, f"{path} can't be looked through: {failure.message}")
    return OwnModel(file, model_format, details)


def check_inputs(model: OwnModel, shape: tuple[int, ...], dtype: str) -> str | None:
    """Why inputs of this shape (without the batch) and type can't be given to a usable model, None where they can."""
    return misfit(model.path, model.details, shape, dtype)
