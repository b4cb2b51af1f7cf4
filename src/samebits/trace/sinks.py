"""Where spans and events go: memory, a file of JSON lines, or a trace that Chrome and Perfetto open.

TensorBoard and OpenTelemetry are in adapters.py: they need packages that are not always there."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from samebits.trace.spans import Event, Span


class Memory:
    """Keeps everything, in the order in which it was told."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.events: list[Event] = []

    def span(self, span: Span) -> None:
        self.spans.append(span)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        return


class JsonLines:
    """A JSON object a line: `{"span": name, ...}` or `{"event": name, ...}`."""

    def __init__(self, path: str | Path) -> None:
        self._file: TextIO = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`

    def span(self, span: Span) -> None:
        # By hand: there are thousands a second, and an encoder takes longer than the rest of a span.
        place = f'"number": {span.number}, "parent": {span.parent}, "thread": {span.thread}'
        times = f'"began": {span.began}, "ended": {span.ended}'
        device = "" if span.device is None else f', "device": {span.device}'
        kind = f'"span": {_quoted(span.name)}, "granularity": {_quoted(span.granularity)}'
        self._file.write(f"{{{kind}, {place}, {times}{device}{_members(span.facts)}}}\n")

    def event(self, event: Event) -> None:
        kind = f'"event": {_quoted(event.name)}, "time": {event.time}, "parent": {event.parent}'
        self._file.write(f"{{{kind}{_members(event.facts)}}}\n")

    def close(self) -> None:
        self._file.close()


class ChromeTrace:
    """The JSON that chrome://tracing and ui.perfetto.dev read; written when it is closed, whole or not at all."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._lines = Path(path), list[dict[str, Any]]()

    def span(self, span: Span) -> None:
        self._lines.append(
            {
                "name": span.name,
                "cat": span.granularity,
                "ph": "X",
                "ts": span.began / 1e3,
                "dur": span.nanoseconds / 1e3,
                "pid": os.getpid(),
                "tid": span.thread if span.device is None else "GPU",
                "args": _plain(span.facts),
            }
        )

    def event(self, event: Event) -> None:
        self._lines.append(
            {"name": event.name, "ph": "i", "s": "p", "ts": event.time / 1e3, "pid": os.getpid(), "tid": 0}
            | {"args": _plain(event.facts)}
        )

    def close(self) -> None:
        beside = self._path.with_name(f"{self._path.name}.part")
        beside.write_text(json.dumps({"traceEvents": self._lines, "displayTimeUnit": "ms"}, allow_nan=False))
        beside.replace(self._path)


# Names and shapes come again and again.
_quoted = lru_cache(maxsize=4096)(json.dumps)


def _members(facts: Mapping[str, Any]) -> str:
    """Facts as members of a JSON object, behind others."""
    return "".join([f", {_quoted(name)}: {_value(value)}" for name, value in facts.items()])


def _value(value: Any) -> str:
    if type(value) is int:
        return str(value)
    if type(value) is str:
        return _quoted(value)
    return json.dumps(_plain({"": value})[""], allow_nan=False)


def _plain(facts: Any) -> dict[str, Any]:
    """JSON has no NaN and no infinity: those are said in words."""
    return {
        name: repr(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in facts.items()
    }
