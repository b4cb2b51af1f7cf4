"""Plain files, and nothing else that a path may lead to: a pipe, a socket, a device or a folder is refused at once.

Opening some of those waits for ever, and writing to others goes somewhere else. Knows no format."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a plain file, or of one that a link leads to; more than `most` are refused unread."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {_reason(error)}") from error
    try:
        status = os.fstat(handle)
        _check(path, status.st_mode)
        if status.st_size > most:
            raise ValueError(f"{path}: has {status.st_size} bytes; allowed: at most {most}")
        with os.fdopen(os.dup(handle), "rb") as file:
            return file.read(most)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {_reason(error)}") from error
    finally:
        os.close(handle)


def open_plain(path: Path, flags: int) -> int:
    """A handle to a plain file that is there or is made, to be written; links are refused, for they lead elsewhere."""
    try:
        handle = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path}: is a link; allowed: a plain file, or none yet") from error
        if error.errno in (errno.ENXIO, errno.EISDIR):
            _check(path, os.lstat(path).st_mode)
        raise ValueError(f"{path}: cannot be written: {_reason(error)}") from error
    try:
        _check(path, os.fstat(handle).st_mode)
    except ValueError:
        os.close(handle)
        raise
    return handle


def refuse_unless_plain(path: Path) -> None:
    """Asked before a file is replaced by another: whatever else has its name stays as it is."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be written: {_reason(error)}") from error
    if stat.S_ISLNK(mode):
        raise ValueError(f"{path}: is a link; allowed: a plain file, or none yet")
    _check(path, mode)


def _check(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for asks, name in _KINDS if asks(mode)), "no plain file")
        raise ValueError(f"{path}: is {kind}; allowed: a plain file")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
