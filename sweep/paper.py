"""A published study's numbers as data: strictly loaded, every one with its source and the setup that it holds for."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from sweep.axes import AXES
from sweep.config import NoDuplicates
from sweep.errors import ConfigError, nearest
from sweep.schema import Strict

WHERE = (*AXES, "weights_from")
"""What a number or a claim may be of, as rows have it; a framework stands without its version."""

PERCENT = "percent"
Condition = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value), Field(min_length=1)]


class Setup(Strict):
    """How the study got its numbers."""

    frameworks: dict[str, str]  # versions
    machine: str
    protocol: str
    recipes: list[str]
    best_of: PositiveInt = 1
    training: dict[str, dict[str, str | float]] = Field({})  # by architecture, as far as printed


class Data(Strict):
    """The test images that the study used, and which of our sources are not the original, with what they are instead."""

    test: PositiveInt
    altered: dict[str, str] = Field({})


class Table(Strict):
    """Numbers of one metric; `values` are nested as `by` says. A text in the place of a number says why there is none."""

    id: str
    source: str
    read: Literal["printed", "plot", "calculated"] = "printed"
    setup: str
    metric: str
    unit: str
    widest: PositiveFloat | None = None  # an interval of ours beyond this, in the unit, decides nothing
    incomparable: str | None = None  # why no number of ours may stand beside these
    where: dict[str, Condition]
    by: Annotated[list[str], Field(min_length=1)]
    values: dict[str, Any]


class Claim(Strict):
    """A statement over several numbers: a range in points of the metric."""

    id: str
    says: str
    source: str
    setup: str
    kind: Literal["spread", "same_weights_change", "conversion_change"]
    metric: str = "accuracy"
    where: dict[str, Condition]
    low: float
    high: float
    widest: PositiveFloat


class Number(NamedTuple):
    """One number of a table."""

    table: Table
    where: Mapping[str, Sequence[str]]
    value: float | str

    @property
    def name(self) -> str:
        return " ".join(self.where[axis][0] for axis in self.table.by)


class Paper(Strict):
    """The validated content of one file."""

    title: str
    source: str
    setups: dict[str, Setup]
    data: dict[str, Data]
    architectures: dict[str, str]  # and the data set of each
    tables: list[Table]
    claims: list[Claim]

    @model_validator(mode="after")
    def _meaningful(self) -> "Paper":
        names: set[str] = set()
        for kind, entries in (("tables", self.tables), ("claims", self.claims)):
            for entry in entries:
                where = f"{kind}.{entry.id}"
                if where in names:
                    raise ValueError(f"{kind}: the id {entry.id!r} stands twice")
                names.add(where)
                if entry.setup not in self.setups:
                    raise ValueError(f"{where}.setup: there is no {entry.setup!r}{nearest(entry.setup, self.setups)}")
                for axis in (*entry.where, *(entry.by if isinstance(entry, Table) else ())):
                    if axis not in WHERE:
                        raise ValueError(f"{where}: there is no {axis!r}{nearest(axis, WHERE)}")
        for dataset in self.architectures.values():
            if dataset not in self.data:
                raise ValueError(f"architectures: there is no {dataset!r} in data{nearest(dataset, self.data)}")
        for table in self.tables:
            if table.incomparable is None and (table.widest is None or table.unit != PERCENT):
                raise ValueError(f"tables.{table.id}: only a table in {PERCENT} with a `widest` may be compared; else say `incomparable`")
            for _number in numbers(table):  # raises for values that are not nested as `by` says
                pass
        for claim in self.claims:
            if claim.low > claim.high:
                raise ValueError(f"claims.{claim.id}: low {claim.low:g} exceeds high {claim.high:g}")
        return self


def load(path: Path) -> Paper:
    """Raises ConfigError that names the file and the key."""
    try:
        content = yaml.load(path.read_text(), Loader=NoDuplicates)  # a SafeLoader that also refuses duplicate keys
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    try:
        return Paper.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "\n  ".join(_explained(each) for each in error.errors(include_url=False)[:5])) from None


def numbers(table: Table) -> Iterator[Number]:
    """Every number of a table, in the order of the file. Raises ValueError where the values are not nested as `by` says."""
    yield from _numbers(table, table.values, {})


def _numbers(table: Table, values: Any, at: dict[str, str]) -> Iterator[Number]:
    place = ".".join((f"tables.{table.id}.values", *at.values()))
    if len(at) == len(table.by):
        if isinstance(values, bool) or not isinstance(values, int | float | str):
            raise ValueError(f"{place} must be a number, or a text that says why there is none, not {values!r}")
        where = {**table.where, **{axis: [value] for axis, value in at.items()}}
        yield Number(table, where, values if isinstance(values, str) else float(values))
        return
    axis = table.by[len(at)]
    if not isinstance(values, dict) or not values:
        raise ValueError(f"{place} must be a mapping by {axis}, not {values!r}")
    for value, below in values.items():
        yield from _numbers(table, below, {**at, axis: str(value)})


def _explained(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"there is no key {where!r}"
    if error["type"] == "missing":
        return f"the key {where!r} is missing"
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    return f"{where or 'the file'}: {error['msg'][0].lower()}{error['msg'][1:]}, not {str(error['input'])[:80]!r}"
