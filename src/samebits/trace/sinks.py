"""Where spans and events go: memory, a file of JSON lines, or a trace that Chrome and Perfetto open.

TensorBoard and OpenTelemetry are in adapters.py: they need packages that are not always there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from samebits.trace.lines import members, plain, quoted
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
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by `close`

    def span(self, span: Span) -> None:
        place = f'"number": {span.number}, "parent": {span.parent}, "thread": {span.thread}'
        times = f'"began": {span.began}, "ended": {span.ended}'
        device = "" if span.device is None else f', "device": {span.device}'
        kind = f'"span": {quoted(span.name)}, "granularity": {quoted(span.granularity)}'
        self._file.write(f"{{{kind}, {place}, {times}{device}{members(span.facts)}}}\n".encode())

    def lines(self, lines: bytes) -> None:
        self._file.write(lines)

    def event(self, event: Event) -> None:
        kind = f'"event": {quoted(event.name)}, "time": {event.time}, "parent": {event.parent}'
        self._file.write(f"{{{kind}{members(event.facts)}}}\n".encode())

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
                "args": plain(span.facts),
            }
        )

    def event(self, event: Event) -> None:
        self._lines.append(
            {"name": event.name, "ph": "i", "s": "p", "ts": event.time / 1e3, "pid": os.getpid(), "tid": 0}
            | {"args": plain(event.facts)}
        )

    def close(self) -> None:
        beside = self._path.with_name(f"{self._path.name}.part")
        beside.write_text(json.dumps({"traceEvents": self._lines, "displayTimeUnit": "ms"}, allow_nan=False))
        beside.replace(self._path)
