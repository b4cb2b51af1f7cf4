"""YAML as a contract needs it: a mapping with unique keys, plain scalars, numbers that are numbers, and line numbers.

Refused: repeated keys, anchors and aliases, tags, merges, directives, base-60 and octal integers, numbers that are not
finite, more than one document. Built from the parser's events in one pass, so that nothing is ever constructed but
text, numbers, true, false and null, and no text can grow: an alias is refused where it stands."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from samebits.records.plain_file import read_plain

MAXIMUM_DEPTH: Final = 12
MAXIMUM_BYTES: Final = 1_000_000
MAXIMUM_DIGITS: Final = 18
"""Of a whole number: it fits 64 bits and any float holds its size."""

_BOOLEANS: Final = {"true": True, "false": False}
_NULLS: Final = ("null", "~", "")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", re.ASCII)
# Looks like a number to some reader of YAML and like text to another: must be quoted or rewritten.
_AMBIGUOUS = re.compile(
    r"[-+]?(?:0[0-9]+|[0-9](?=[0-9]*_)[0-9_]*|[0-9]+(?::[0-9]+)+|0[xob][0-9a-f]+|\.?(?:inf|nan))", re.ASCII | re.I
)


LONGEST_MESSAGE: Final = 1000


class ContractError(ValueError):
    """A contract that cannot be loaded: file, line, what is wrong, what is allowed. One line that can be printed,
    whatever is in the file: keys may hold line ends and terminal codes."""

    def __init__(self, message: str) -> None:
        shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in message[:LONGEST_MESSAGE])
        super().__init__(shown if len(message) <= LONGEST_MESSAGE else f"{shown}...")


class Located(dict[str, Any]):
    """A mapping that remembers on which line each of its keys stands."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def read(path: Path) -> bytes:
    """The bytes of a plain file that may be a contract."""
    try:
        return read_plain(path, MAXIMUM_BYTES)
    except ValueError as error:
        raise ContractError(str(error)) from error


def load(path: Path) -> Located:
    """The document in `path`, or a ContractError that names file and line."""
    return parse(read(path), path)


def parse(raw: bytes, path: Path) -> Located:
    """The document that `raw` spells; `path` is only named in errors."""
    if len(raw) > MAXIMUM_BYTES:
        raise ContractError(f"{path}:1: too long; allowed: at most {MAXIMUM_BYTES} bytes")
    try:
        events = yaml.parse(raw.decode("utf-8"), Loader=yaml.CSafeLoader)
        return _Builder(events, path).document()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line + 1 if mark else 1
        raise ContractError(f"{path}:{line}: not YAML: {' '.join(str(error).split())[:200]}") from error


class _Builder:
    """Turns events into a document, event by event."""

    def __init__(self, events: Iterator[Any], path: Path) -> None:
        self.events, self.path = events, path

    def document(self) -> Located:
        first = self._next(yaml.StreamStartEvent)
        start = next(self.events)
        if isinstance(start, yaml.StreamEndEvent):
            raise self._error(first, "a contract is a mapping, got an empty file")
        if start.version or start.tags:
            raise self._error(start, "directives are not allowed")
        top = next(self.events)
        if not isinstance(top, yaml.MappingStartEvent):
            raise self._error(top, f"a contract is a mapping, got {_word(top)}")
        built = self._value(top, 0)
        assert isinstance(built, Located)
        self._next(yaml.DocumentEndEvent)
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise self._error(after, "a second document begins; allowed: one")
        return built

    def _next(self, kind: type) -> Any:
        event = next(self.events)
        assert isinstance(event, kind)
        return event

    def _error(self, event: Any, message: str) -> ContractError:
        return ContractError(f"{self.path}:{_line(event)}: {message}")

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            raise self._error(event, "anchors and aliases are not allowed")
        if event.tag:
            raise self._error(event, f"tag {event.tag[:60]!r} is not allowed")
        if depth > MAXIMUM_DEPTH:
            raise self._error(event, f"nested deeper than {MAXIMUM_DEPTH}")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(depth)
        return self._scalar(event)

    def _sequence(self, depth: int) -> list[Any]:
        built: list[Any] = []
        event: Any
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            built.append(self._value(event, depth + 1))
        return built

    def _mapping(self, depth: int) -> Located:
        built = Located()
        event: Any
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag or event.value in ("", "<<"):
                raise self._error(event, f"a key is plain text, got {_word(event)}")
            key = event.value
            if key in built:
                raise self._error(event, f"key {key[:60]!r} appears twice; first on line {built.lines[key]}")
            built.lines[key] = _line(event)
            built[key] = self._value(next(self.events), depth + 1)
        return built

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        # Quoted and folded text is text, whatever it looks like.
        if not event.implicit[0]:
            return text
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _AMBIGUOUS.fullmatch(text):
            shown = repr(text[:60])
            raise self._error(
                event, f"{shown} reads differently to different readers; write a plain number or quote it"
            )
        if _INTEGER.fullmatch(text):
            if len(text.lstrip("-+")) > MAXIMUM_DIGITS:
                raise self._error(event, f"{text[:30]}... has too many digits; allowed: {MAXIMUM_DIGITS}")
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                raise self._error(event, f"{text[:60]} is too large for a number; allowed: finite ones")
            return number
        return text


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _word(event: Any) -> str:
    """An event in a few words."""
    if isinstance(event, yaml.MappingStartEvent):
        return "a mapping"
    if isinstance(event, yaml.SequenceStartEvent):
        return "a list"
    return f"{event.value[:60]!r}" if isinstance(event, yaml.ScalarEvent) else "an alias"
