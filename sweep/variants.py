"""Values of an axis with settings of their own.

A grid writes a mapping, whose lists span a grid of their own; a cell has one text, with the settings in the order of their names:

    attack: [pgd, {pgd: {eps: [0.1, 0.2]}}]
    pgd, pgd(eps=0.1), pgd(eps=0.2)
"""

import itertools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_VARIANT = re.compile(r"(?P<base>[^()]+)\((?P<settings>[^()]*)\)")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_PLAIN = re.compile(r"[A-Za-z0-9_.+/-]+")


class Variant(NamedTuple):
    """A value of an axis, taken apart."""

    base: str
    settings: Mapping[str, Any]


def parse(text: str) -> Variant:
    """The reverse of `write`. Raises ValueError for a text that starts like a variant and isn't one."""
    if "(" not in text and ")" not in text:
        return Variant(text, {})
    match = _VARIANT.fullmatch(text)
    pairs = [pair.partition("=") for pair in match["settings"].split(",")] if match else []
    if not match or not all(equals and _PLAIN.fullmatch(name.strip()) and value.strip() for name, equals, value in pairs):
        raise ValueError(f"{text!r} is not of the form name(setting=value,setting=value)")
    return Variant(match["base"].strip(), {name.strip(): _value(value.strip()) for name, _equals, value in pairs})


def base(text: str) -> str:
    """A value without its settings."""
    return text.partition("(")[0]


def without(text: str, setting: str) -> str:
    """A value without one of its settings."""
    found = parse(text)
    return write(found.base, {name: value for name, value in found.settings.items() if name != setting})


def write(name: str, settings: Mapping[str, Any]) -> str:
    """The one text of a value with these settings. Raises ValueError for a setting that has no plain text."""
    if not settings:
        return name
    return f"{name}({','.join(f'{key}={_plain(key, value)}' for key, value in sorted(settings.items()))})"


def spanned(value: Any) -> list[Any]:
    """The texts that one entry of an axis stands for; what is neither a text nor a mapping is left to the schema."""
    if isinstance(value, str):
        try:
            return [write(*parse(value))]
        except ValueError:
            return [value]  # the check of the axis has the words for it
    if not isinstance(value, dict):
        return [value]
    found = []
    for name, settings in value.items():
        if not isinstance(settings, dict) or not settings:
            raise ValueError(f"{name!r} is followed by its settings, {{name: value}}, not by {settings!r}")
        lists = [each if isinstance(each, list) else [each] for each in settings.values()]
        found += [write(str(name), dict(zip(settings, chosen, strict=True))) for chosen in itertools.product(*lists)]
    return found


def _plain(key: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, str | int | float) or not _PLAIN.fullmatch(text) or _value(text) != value:
        raise ValueError(f"{key}: {value!r} can't be a setting of an axis, which takes a number, true, false or a word")
    return text


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if set(text) & set(".eE") else int(text)
