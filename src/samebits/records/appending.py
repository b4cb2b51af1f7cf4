"""Lines at the end of a log, whole or not at all.

A disk that is nearly full takes the first half of a line and says nothing; only the next write is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# What is read at once where the end of the last whole line is looked for.
BLOCK: Final = 1 << 16


def append(handle: int, data: bytes, path: Path) -> None:
    """All of it to a file opened with O_APPEND by its only writer; after an error the file is as it was.

    `path` is named in the error."""
    size = os.fstat(handle).st_size
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(handle, rest) :]
    except OSError as error:
        os.ftruncate(handle, size)
        error.filename = str(path)
        raise


def drop_torn_line(handle: int) -> None:
    """Of a log whose last line a kill cut short, that line: the next one would be glued to it."""
    end = os.fstat(handle).st_size
    while end:
        start = max(0, end - BLOCK)
        end = start + os.pread(handle, end - start, start).rfind(b"\n") + 1
        if end > start:
            break
    os.ftruncate(handle, end)
