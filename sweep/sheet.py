"""One table of a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sheet:
    """One table: `data` for CSV, `shown` for people (both by column), and what has to be said of it."""

    name: str
    title: str
    data: Sequence[Mapping[str, Any]]
    shown: Sequence[Mapping[str, str]]
    notes: Sequence[str] = ()
