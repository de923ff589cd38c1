"""What passes between the driver, its actors and the ledger: plain values that know neither Ray nor MLflow."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from sweep.plan import Stage

OK, SKIPPED, FAILED = "ok", "skipped", "failed"
BROKEN = "broken"
"""The fact `parity` of a conversion that does not compute its source's function."""

READ = "read_"
"""Facts of a result with this prefix are the digests of the inputs that it read, by role."""

UNDIGESTED = ("result.json", "log.txt", "manifest.json")
"""Files of a stage that say how it went, not what it made."""


@dataclass(frozen=True)
class Place:
    """Where a stage's files are: a folder on this machine, or artifacts of a run to be fetched by URI."""

    digest: str
    folder: str | None = None
    uri: str | None = None


@dataclass(frozen=True)
class DataOrder:
    """How a node finds a data set, and what it must be when found."""

    name: str
    path: str | None
    allow_subset: bool
    digest: str
    splits: str
    source: str = ""  # the kind of source, for the record
    settings: tuple[tuple[str, int], ...] = ()  # how it is prepared


@dataclass(frozen=True)
class Upload:
    """The run that a node uploads a stage's files to by itself, since the driver can't see its disk."""

    tracking_uri: str
    run_id: str
    uri: str


@dataclass(frozen=True)
class Order:
    """One attempt at a stage, as it is handed to an actor."""

    stage: Stage
    attempt: str
    folder: str  # where its files are written, on the machine that runs it
    inputs: Mapping[str, Place]
    data: DataOrder | None
    threads: int
    seconds: float
    memory_bytes: int  # 0 leaves it to the machine
    upload: "Upload | None" = None


@dataclass(frozen=True)
class Result:
    """A stage's outcome. `metrics` carry their unit in the name; `curves` hold one point per epoch; `facts` become tags."""

    key: str
    kind: str
    attempt: str
    status: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    curves: Sequence[Mapping[str, float]] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    failure_class: str = ""
    message: str = ""
    digest: str = ""
    folder: str | None = None
    seconds: float = 0.0
    ended: float = field(default_factory=time.time)

    @property
    def ok(self) -> bool:
        return self.status == OK


@dataclass(frozen=True)
class Finished:
    """A stage as the ledger has it."""

    key: str
    kind: str
    status: str
    failure_class: str
    message: str
    digest: str
    metrics: Mapping[str, float]
    facts: Mapping[str, str]
    uri: str
    seconds: float


@dataclass(frozen=True)
class CellRecord:
    """A row of the sweep's table, derived from the results of its stages."""

    key: str
    name: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    stages: Sequence[str]
    replaces: str = ""  # key of another row that this one makes obsolete, where it stands there


def local_folder(uri: str) -> Path | None:
    """The folder of a file URI or a plain path, None for one that is elsewhere."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    return None if parsed.scheme else Path(uri)


def write_manifest(folder: Path) -> str:
    """List a stage's files with size and SHA-256 in manifest.json; returns the digest of what it made (UNDIGESTED left out)."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"):
        files[path.relative_to(folder).as_posix()] = [path.stat().st_size, _sha256(path)]
    (folder / "manifest.json").write_text(json.dumps(files, indent=1))
    return manifest_digest(files)


def manifest_digest(files: Mapping[str, Sequence[Any]]) -> str:
    """The digest that a manifest stands for."""
    made = {name: digest for name, (_size, digest) in files.items() if name not in UNDIGESTED}
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:32]


def verify(folder: Path, digest: str, content: bool) -> str | None:
    """Why a folder is not what `digest` says, None if it is. Sizes are always compared, the content on request."""
    try:
        files = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return f"{folder} has no readable manifest.json"
    if manifest_digest(files) != digest:
        return f"{folder} holds other files than were recorded"
    for name, (size, sha256) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if name in UNDIGESTED:  # a warm worker may still write to the log of the stage that it was started for
            continue
        if path.stat().st_size != size or (content and _sha256(path) != sha256):
            return f"{path} has changed"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
