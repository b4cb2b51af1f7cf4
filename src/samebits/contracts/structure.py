"""Builds typed records out of a loaded document, strictly: closed keys, exact types, and the line of whatever is wrong.

Knows records (dataclasses), lists, mappings by id and plain scalars; no contract and no operator."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from samebits.contracts.strict_yaml import ContractError, Located

Record = TypeVar("Record")
_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: file, line, and the names that lead to it."""

    path: Path
    line: int
    name: str = ""

    def at(self, name: str, line: int) -> Place:
        return Place(self.path, line, f"{self.name}.{name}" if self.name else name)

    def fail(self, message: str) -> ContractError:
        said = f"{self.name}: " if self.name else ""
        return ContractError(f"{self.path}:{self.line}: {said}{message}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def build(kind: type[Record], value: Any, place: Place) -> Record:
    """`value` as a record of type `kind`; a ContractError names file, line and key."""
    if not isinstance(value, Located):
        raise place.fail(f"must be a mapping, got {_shown(value)}")
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            # fail() without the record's name: the key is what is wrong.
            where = Place(place.path, value.lines[key])
            raise where.fail(f"unknown key {key!r}; allowed: {', '.join(sorted(known))}")
    missing = list(_missing(kind, value))
    # What one inner record lacks is told there, by its own line.
    if len({name.partition(".")[0] for name in missing}) > 1 or any("." not in name for name in missing):
        names = ", ".join(map(repr, missing))
        raise place.fail(f"key {names} is missing" if len(missing) == 1 else f"keys {names} are missing")
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    given = {}
    for key, item in value.items():
        # What may be left out may also be empty, unless something is derived where it is left out.
        empty = known[key].default_factory is not MISSING and not known[key].metadata and item in ([], {})
        given[key] = item if empty else _value(hints[key], item, place.at(key, value.lines[key]))
    return kind(**given)


def _missing(kind: type, value: Located) -> Iterator[str]:
    """Every key that is needed and left out, of this record and of those inside it."""
    hints = _hints(kind)
    for each in fields(kind):
        inner = hints[each.name]
        if each.name not in value:
            if each.default is MISSING and each.default_factory is MISSING:
                yield each.name
        elif is_dataclass(inner) and isinstance(value[each.name], Located):
            yield from (f"{each.name}.{name}" for name in _missing(inner, value[each.name]))  # type: ignore[arg-type]


def _value(kind: Any, value: Any, place: Place) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        # None stands for "left out", never for a value; of two kinds one is a mapping, and the value tells which.
        kinds = [each for each in inner if each is not type(None)]
        if len(kinds) > 1:
            kinds = [each for each in kinds if (get_origin(each) is dict) == isinstance(value, Located)]
        return _value(kinds[0], value, place)
    if origin is list:
        if not isinstance(value, list) or not value:
            raise place.fail(f"must be a non-empty list, got {_shown(value)}")
        return [_value(inner[0], item, place) for item in value]
    if origin is dict:
        if not isinstance(value, Located) or not value:
            raise place.fail(f"must be a non-empty mapping, got {_shown(value)}")
        return {key: _value(inner[1], item, place.at(key, value.lines[key])) for key, item in value.items()}
    if kind is Any:
        return value
    if is_dataclass(kind):
        return build(kind, value, place)  # type: ignore[arg-type]
    return _scalar(kind, value, place)


def _scalar(kind: type, value: Any, place: Place) -> Any:
    exact = type(value) is kind or (kind is float and type(value) is int)
    if not exact or (kind is str and not value.strip()):
        raise place.fail(f"must be {_WORDS[kind]}, got {_shown(value)}")
    return kind(value)


def _shown(value: Any) -> str:
    """A wrong value in a few words: a whole document would not fit a line."""
    text = (
        repr(value) if not isinstance(value, Located) else f"a mapping with {', '.join(map(repr, value)) or 'no key'}"
    )
    return text if len(text) <= 60 else f"{text[:57]}..."
