"""Files and directories that are on the disk, not only in memory, when a call returns; and one writer at a time.

Knows no format. A kill leaves what was there before a call or what is there after it, or a `.part` beside it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# A file under this ending is not there yet: it takes its name in one move once its bytes are on the disk.
PART: Final = ".part"


def put(path: Path, data: bytes) -> None:
    """Bytes into a file, and onto the disk; not all at once."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(path, flags, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "is not a regular file")
            os.ftruncate(handle, 0)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        error.filename = str(path)
        raise


def put_in_one_move(path: Path, data: bytes) -> None:
    """The old file or the new one, whole, at any moment."""
    part = path.with_name(f"{path.name}{PART}")
    try:
        put(part, data)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """A directory and those above it that are missing, each named on the disk."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """The names that a directory holds, onto the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def only_writer(folder: Path) -> Iterator[bool]:
    """Whether this is the only writer of a folder. The lock is the kernel's: it ends with its process."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def reason(error: OSError) -> str:
    """Why the system said no, in one line."""
    return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
