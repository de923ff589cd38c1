"""From YAML to a validated sweep. Every error names the key, the value and the nearest valid one; nothing is touched but the file."""

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sweep.errors import ConfigError, nearest
from sweep.schema import Sweep


def load(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file and apply `key.key=value` overrides. Raises ConfigError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        content = yaml.load(text, Loader=NoDuplicates)  # a SafeLoader that also refuses duplicate keys
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is empty" if content is None else f"{path} must be a mapping of keys, not a {type(content).__name__}")
    content = _sized(content, overrides, path)
    try:
        return Sweep.model_validate(content)
    except ValidationError as error:
        raise ConfigError(_explain(error.errors(include_url=False), content, path)) from None


def _sized(content: dict[str, Any], overrides: Sequence[str], path: Path) -> dict[str, Any]:
    """The content with the chosen one of its `sizes` merged in, and the overrides over all."""
    chosen = copy.deepcopy(content)
    for override in overrides:
        _override(chosen, override)
    size, sizes = chosen.get("size"), chosen.get("sizes")
    if size is None:
        return chosen
    if not isinstance(sizes, dict):
        raise ConfigError(f"{path}: size: {size!r} is none, since there are no sizes")
    if size not in sizes or not isinstance(sizes[size], dict):
        raise ConfigError(f"{path}: size: there is no {size!r}{nearest(size, sizes)}")
    content = _merged(content, sizes[size])
    for override in overrides:
        _override(content, override)
    return content


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _merged(merged[key], value) if isinstance(value, dict) and isinstance(merged.get(key), dict) else copy.deepcopy(value)
    return merged


class NoDuplicates(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _value in node.value if key.tag != "tag:yaml.org,2002:merge"]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1, which the library reads, takes 1e-3 for a string; 1.2 and everyone who writes a learning rate take it for a number
NoDuplicates.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789"))


def _override(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"an override is key=value, not {override!r}")
    try:
        parsed = yaml.load(value, Loader=NoDuplicates)
    except yaml.YAMLError:
        raise ConfigError(f"the value of {key!r} is not valid YAML: {value!r}") from None
    *parents, last = key.split(".")
    place: Any = content
    for part in parents:
        place = place[_index(key, part, place)] if isinstance(place, list) else place.setdefault(part, {})
        if not isinstance(place, dict | list):
            raise ConfigError(f"{key!r} goes below {part!r}, which is a single value")
    place[_index(key, last, place) if isinstance(place, list) else last] = parsed


def _index(key: str, part: str, place: list[Any]) -> int:
    if not part.isdigit() or int(part) >= len(place):
        raise ConfigError(f"{key!r}: {part!r} must be a number from 0 to {len(place) - 1}, since a list stands there")
    return int(part)


def _explain(errors: Sequence[Any], content: Mapping[str, Any], path: Path) -> str:
    """One line per error, the first five."""
    lines = []
    for error in errors[:5]:
        location = [part for part in error["loc"] if part != 0 or isinstance(content.get("grid"), list)]
        where = ".".join(map(str, location))
        if error["type"] == "extra_forbidden":
            lines.append(f"there is no key {where!r}{nearest(str(location[-1]), _fields(error['loc'][:-1]))}")
        elif error["type"] == "too_short":
            lines.append(f"{where} is empty")
        elif error["type"] == "missing":
            lines.append(f"the key {where!r} is missing")
        elif error["type"] == "value_error":
            lines.append((f"{where}: " if where else "") + error["msg"].removeprefix("Value error, "))
        else:
            lines.append(f"{where}: {error['msg'][0].lower()}{error['msg'][1:]}, not {error['input']!r}")
    return f"{path}: " + "\n  ".join(lines)


def _fields(location: Sequence[Any]) -> list[str]:
    model: Any = Sweep
    for part in location:
        if part not in model.model_fields:  # a number in a list, or a value of an axis
            continue
        annotation = model.model_fields[part].annotation
        while hasattr(annotation, "__args__"):
            annotation = annotation.__args__[-1]
        model = annotation
    return list(model.model_fields)
