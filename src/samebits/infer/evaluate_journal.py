"""What an evaluation has scored so far, a line a document: appended, never written over, gone on with after a kill.

Knows no model. The first line says what was evaluated; a journal of anything else is refused."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from samebits.model.json_file import parse_json
from samebits.records.appending import append
from samebits.records.durable import make_directory
from samebits.records.plain_file import open_plain

NAME: Final = "samples.jsonl"
Key = tuple[str, int]
"""A task's name and the number of a document in it."""
Likelihoods = tuple[float, ...]


class Journal:
    """An open journal and what it holds."""

    def __init__(self, handle: int, path: Path, found: dict[Key, Likelihoods]) -> None:
        self._handle, self._path, self.found = handle, path, found

    def add(self, scored: Mapping[Key, Sequence[float]]) -> None:
        """Some documents, on the disk when this returns."""
        lines = [line(key, values) for key, values in scored.items()]
        append(self._handle, "".join(lines).encode(), self._path)
        os.fsync(self._handle)
        self.found |= {key: tuple(values) for key, values in scored.items()}


def line(key: Key, likelihoods: Sequence[float]) -> str:
    """One document: floats as the shortest text that gives them back."""
    return json.dumps({"task": key[0], "document": key[1], "loglikelihoods": list(likelihoods)}) + "\n"


@contextmanager
def opened(folder: Path, facts: Mapping[str, Any], *, resume: bool) -> Iterator[Journal]:
    """The journal of a folder, for one process at a time."""
    make_directory(folder)
    handle = open_plain(folder / NAME, os.O_RDWR | os.O_APPEND)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{folder}: another evaluation is at work here; allowed: one at a time") from error
        data = os.pread(handle, os.fstat(handle).st_size, 0)
        first = (json.dumps(facts) + "\n").encode()
        whole = data[: data.rfind(b"\n") + 1]
        if whole and not resume:
            raise ValueError(f"{folder}: holds an evaluation; allowed: --resume, or another folder")
        lines = whole.split(b"\n")[:-1]
        if lines:
            _same(folder, parse_json(lines[0], f"{folder / NAME}:1"), facts)
        elif not first.startswith(data):
            # What a kill leaves is the beginning of the first line; anything else is somebody's.
            raise ValueError(f"{folder / NAME}: holds {data[:40]!r}, no evaluation; allowed: another folder")
        # Not before it is known whose file this is: what a kill cut short is no line.
        os.ftruncate(handle, len(whole))
        if not lines:
            append(handle, first, folder / NAME)
        found = dict(_read(text, f"{folder / NAME}:{number}") for number, text in enumerate(lines[1:], 2))
        yield Journal(handle, folder / NAME, found)
    finally:
        os.close(handle)


def _same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key in dict.fromkeys((*now, *before)):
        if before.get(key) != now.get(key):
            said = f"{key} was {before.get(key)!r:.80} and is now {now.get(key)!r:.80}"
            raise ValueError(f"{folder}: {said}; allowed: as it was, or another folder")


def _read(text: bytes, where: str) -> tuple[Key, Likelihoods]:
    value = parse_json(text, where)
    task, document, found = value.get("task"), value.get("document"), value.get("loglikelihoods")
    numbers = isinstance(found, list) and all(type(each) is float for each in found)
    if not isinstance(task, str) or type(document) is not int or not isinstance(found, list) or not numbers:
        raise ValueError(f"{where}: holds {sorted(value)}; allowed: task, document, loglikelihoods")
    return (task, document), tuple(found)
