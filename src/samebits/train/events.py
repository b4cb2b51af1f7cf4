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

from samebits.records.plain_file import open_plain

NAME: Final = "events.jsonl"
KINDS: Final = ("start", "step", "checkpoint", "alarm", "breach", "end")


class Events:
    """An open log."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def write(self, kind: str, facts: Mapping[str, Any]) -> None:
        """One line in one write: it is there whole or, after a crash of the machine, not."""
        if kind not in KINDS:
            raise ValueError(f"event is {kind!r}; allowed: {', '.join(KINDS)}")
        line = json.dumps({"event": kind, "time": round(time.time(), 3), **_plain(facts)}, allow_nan=False)
        os.write(self._handle, f"{line}\n".encode())


class _Unwritten(Events):
    """Of a rank that writes nothing: another one does."""

    def __init__(self) -> None:
        super().__init__(-1)

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
        _drop_torn_line(handle)
        yield Events(handle)
    finally:
        os.close(handle)


def _drop_torn_line(handle: int) -> None:
    size = os.fstat(handle).st_size
    block = 1 << 16
    for start in range(max(0, size - block), -1, -block):
        end = os.pread(handle, size - start, start).rfind(b"\n") + 1
        if end or start == 0:
            os.ftruncate(handle, start + end)
            return


def read(folder: Path) -> list[dict[str, Any]]:
    """All whole events; of a step that was made again after a kill, the last one."""
    lines = (folder / NAME).read_bytes().split(b"\n")[:-1]
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    last = {event["step"]: place for place, event in enumerate(events) if event["event"] == "step"}
    return [event for place, event in enumerate(events) if event["event"] != "step" or last[event["step"]] == place]
