"""What a run did, a JSON object a line: start, step, checkpoint, alarm, breach, end. Appended, and never written over.

Knows no screen. A kill can cut the last line short; what is torn is dropped when the file is opened again."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from samebits.model.json_file import parse_json
from samebits.records.appending import append, drop_torn_line
from samebits.records.plain_file import open_plain

NAME: Final = "events.jsonl"
KINDS: Final = ("start", "step", "checkpoint", "alarm", "breach", "end")


class Events:
    """An open log."""

    def __init__(self, handle: int, path: Path) -> None:
        self._handle, self._path = handle, path

    def write(self, kind: str, facts: Mapping[str, Any]) -> None:
        """One line: it is there whole or, after an error or a crash of the machine, not."""
        if kind not in KINDS:
            raise ValueError(f"event is {kind!r}; allowed: {', '.join(KINDS)}")
        line = json.dumps({"event": kind, "time": round(time.time(), 3), **_plain(facts)}, allow_nan=False)
        append(self._handle, f"{line}\n".encode(), self._path)


class _Unwritten(Events):
    """Of a rank that writes nothing: another one does."""

    def __init__(self) -> None:
        super().__init__(-1, Path(os.devnull))

    def write(self, kind: str, facts: Mapping[str, Any]) -> None:
        return None


UNWRITTEN: Final[Events] = _Unwritten()


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: those are said in words, never as 0."""
    return {
        name: repr(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in facts.items()
    }


@contextmanager
def opened(folder: Path) -> Iterator[Events]:
    """The log of a run's folder, for one process at a time: the lock ends with it, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be written: {error.strerror}") from error
    handle = open_plain(folder / NAME, os.O_RDWR | os.O_APPEND)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{folder}: another run is at work here; allowed: one at a time") from error
        drop_torn_line(handle)
        yield Events(handle, folder / NAME)
    finally:
        os.close(handle)


def read(folder: Path) -> list[dict[str, Any]]:
    """All whole events; of a step that was made again after a kill, the last one."""
    lines = (folder / NAME).read_bytes().split(b"\n")[:-1]
    events = [_event(line, f"{folder / NAME}:{number}") for number, line in enumerate(lines, 1)]
    last = {event["step"]: place for place, event in enumerate(events) if event["event"] == "step"}
    return [event for place, event in enumerate(events) if event["event"] != "step" or last[event["step"]] == place]


def _event(line: bytes, where: str) -> dict[str, Any]:
    event = parse_json(line, where)
    if event.get("event") not in KINDS or (event["event"] == "step" and type(event.get("step")) is not int):
        said = f"event {event.get('event')!r:.40}, step {event.get('step')!r:.40}"
        raise ValueError(f"{where}: has {said}; allowed: {', '.join(KINDS)}, and a step's number")
    return event
