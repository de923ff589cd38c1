"""What a setting may be, and the one form in which it is kept."""

import math
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
