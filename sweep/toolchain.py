"""Toolchains: locked environments, each with an interpreter of its own. The default one is the interpreter that runs the driver.

`toolchains/NAME.toml` says what a toolchain is and offers, `toolchains/NAME.lock` has every package of it, pinned. SWEEP_TOOLCHAINS
names further folders of such files. `sweep.installation` creates them; here they are found.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sweep import components
from sweep.cache import cache_folder
from sweep.errors import ConfigError, StageFailed

PACKAGE_PARENT = Path(__file__).parent.parent
DEFAULT = "default"
KINDS = ("frameworks", "runtimes")
RECORD = "toolchain.json"
"""The last file of an installation, in the environment's folder; an environment without it is not one."""


@dataclass(frozen=True)
class Toolchain:
    """One environment that can be started. `lock` is the digest of everything that is installed in it."""

    name: str
    command: tuple[str, ...]
    lock: str
    variables: tuple[tuple[str, str], ...] = ()

    def environment(self) -> dict[str, str]:
        """What a worker of it needs besides what every worker gets."""
        return {"PYTHONPATH": str(PACKAGE_PARENT), **dict(self.variables)}


class Definition(BaseModel):
    """What a toolchain's file says; `name` and `pins` come from the file's name and the lock beside it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    pins: Annotated[list[str], Field(min_length=1)]
    python: Annotated[str, Field(pattern=r"^3\.\d+$")]
    installer: list[str]  # installed first, the first of them alone
    packages: list[str]  # what was asked for; the pins are all that follows
    frameworks: dict[str, str] = {}  # value on the grid's axis -> module
    runtimes: dict[str, str] = {}
    exports: dict[str, list[str]] = {}  # module of a framework -> formats that it writes here and nowhere else
    environment: dict[str, str] = {}
    npm: str | None = None  # the package-lock.json of what npm installs, by the Node that is one of the pins; the file names it

    @property
    def lock(self) -> str:
        """Digest of everything that decides what is installed and how it is started."""
        parts = [self.python, self.installer, self.pins, self.environment, *([self.npm] if self.npm else [])]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def folder(self) -> Path:
        """Where its environment is, or would be."""
        return cache_folder() / "toolchains" / f"{self.name}-{self.lock}"

    def interpreter(self) -> Path:
        return self.folder() / "bin" / "python"


class Offer(NamedTuple):
    """Where a value of an axis comes from."""

    toolchain: str
    module: str
    version: str | None = None  # what the default toolchain's package must be, where the value says it


@functools.cache
def definitions() -> Mapping[str, Definition]:
    """Every toolchain but the default one, by name. Raises ConfigError for a file that is wrong."""
    folders = [PACKAGE_PARENT / "toolchains", *map(Path, filter(None, os.environ.get("SWEEP_TOOLCHAINS", "").split(os.pathsep)))]
    found: dict[str, Definition] = {}
    offered: dict[tuple[str, str], str] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.toml"))):
        definition = _read(path)
        if definition.name in (*found, DEFAULT):
            raise ConfigError(f"{path}: there is another toolchain {definition.name!r}")
        for kind in KINDS:
            for value, module in getattr(definition, kind).items():
                if (other := offered.setdefault((kind, value), definition.name)) != definition.name:
                    raise ConfigError(f"{path}: {kind}: {value!r} is offered by the toolchain {other!r} too")
                _check_module(path, kind, kind, module)
        for module in definition.exports:
            _check_module(path, "exports", "frameworks", module)
        found[definition.name] = definition
    return found


def _check_module(path: Path, section: str, kind: str, module: str) -> None:
    if module not in components.names(kind):
        raise ConfigError(f"{path}: {section}: there is no {module!r} in sweep/{kind}")


def _read(path: Path) -> Definition:
    try:
        content = tomllib.loads(path.read_text())
        lines = [line.partition("#")[0].strip() for line in path.with_suffix(".lock").read_text().splitlines()]
        if "npm" in content:
            content["npm"] = (path.parent / str(content["npm"])).read_text()
        return Definition.model_validate({**content, "name": path.stem, "pins": [line for line in lines if line]})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


def offers(kind: str) -> dict[str, Offer]:
    """Every value of an axis that some toolchain offers, without the versions that the default one may have.

    A module is the default toolchain's under its own name, unless a toolchain offers that name, or offers the module under another.
    """
    listed = {
        value: Offer(definition.name, module)
        for definition in definitions().values()
        for value, module in getattr(definition, kind).items()
    }
    elsewhere = {offer.module for value, offer in listed.items() if base(value) != offer.module}
    own = {name: Offer(DEFAULT, name) for name in components.names(kind) if name not in listed and name not in elsewhere}
    return dict(sorted((own | listed).items()))


def offer(kind: str, value: str) -> Offer | None:
    """Where a value comes from, None where no toolchain can have it."""
    known = offers(kind)
    if value in known:
        return known[value]
    name, at, version = value.partition("@")
    if at and version and name in known and known[name].toolchain == DEFAULT:
        return known[name]._replace(version=version)
    return None


def base(value: str) -> str:
    """A value of an axis without its version."""
    return value.partition("@")[0]


def is_version(installed: str, wanted: str) -> bool:
    """Whether a version is the wanted one, given to as many parts as it has: 2.21.0 is 2.21 and 2, and isn't 2.2."""
    parts = wanted.split(".")
    return installed.split(".")[: len(parts)] == parts


@functools.cache
def default() -> Toolchain:
    """The driver's own interpreter, as it was when first asked: reading what is installed takes a tenth of a second."""
    installed = sorted(f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions())
    lock = hashlib.sha256("\n".join([sys.version, *installed]).encode()).hexdigest()[:16]
    return Toolchain(DEFAULT, (sys.executable,), lock)


def named(name: str) -> Toolchain:
    """A toolchain that is installed on this machine. Raises StageFailed `env_unavailable` where it is not."""
    if name == DEFAULT:
        return default()
    definition = definitions().get(name)
    if definition is None:
        raise StageFailed("env_unavailable", f"toolchain {name}: there is no such file here as {name}.toml")
    if not (definition.folder() / RECORD).is_file():
        raise StageFailed("env_unavailable", f"toolchain {name} is not installed: python -m sweep.toolchains install {name}")
    return of(definition)


def of(definition: Definition) -> Toolchain:
    """The toolchain of a definition, whether it is whole or not."""
    variables = {"PYTHONPATH": str(_import_folder()), "PYTHONNOUSERSITE": "1", **definition.environment}
    return Toolchain(definition.name, (str(definition.interpreter()),), definition.lock, tuple(sorted(variables.items())))


@functools.cache
def _import_folder() -> Path:
    """A folder with nothing in it but this package, by a link: beside the package itself there may be another Python's packages."""
    package = Path(__file__).parent
    folder = cache_folder() / "toolchains" / f"import-{hashlib.sha256(str(package).encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / package.name).symlink_to(package)
    return folder
