"""What a setting may be, and the one form in which it is kept."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol


class Rule(Protocol):
    """What a setting may be. Its text completes the sentence "must be ..."."""

    def parse(self, value: Any) -> Any:
        """The value in its one JSON form. Raises ValueError."""


@dataclass(frozen=True)
class Distance:
    """A distance between images in [0, 1] units, under the threat model's norm."""

    def parse(self, value: Any) -> float:
        if isinstance(value, str):
            try:
                value = float(Fraction(value))
            except (ValueError, ZeroDivisionError, OverflowError):
                raise ValueError(value) from None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(value)
        return float(value)

    def __str__(self) -> str:
        return "a number above 0, such as 0.03 or 8/255"


@dataclass(frozen=True)
class Integer:
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int

    def parse(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise ValueError(value)
        return int(value)

    def __str__(self) -> str:
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple[Any, ...]

    def parse(self, value: Any) -> Any:
        for choice in self.values:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
        raise ValueError(value)

    def __str__(self) -> str:
        return " or ".join(repr(value) for value in self.values)


@dataclass(frozen=True)
class Name:
    """A name, whose meaning another check knows."""

    meaning: str

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError(value)
        return value

    def __str__(self) -> str:
        return self.meaning


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high`, both included."""

    low: float
    high: float

    def parse(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            raise ValueError(value)
        return float(value)

    def __str__(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"


def parsed(kind: str, name: str, settings: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Settings of a row in their one form. Raises ValueError that names the row, the key, the value and what would be valid."""
    found = {}
    for key, value in settings.items():
        if key not in rules:
            raise ValueError(f"{kind} {name}: there is no setting {key!r} (given {value!r}){alternatives(key, rules)}")
        try:
            found[key] = rules[key].parse(value)
        except ValueError:
            raise ValueError(f"{kind} {name}: {key} is {value!r}, but must be {rules[key]}") from None
    return found


def alternatives(word: object, valid: Mapping[str, Any]) -> str:
    """What to say after a wrong word: the nearest valid one, or all of them."""
    close = difflib.get_close_matches(str(word), valid, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(valid)}"
