"""Messages between the checker and the process that runs a stranger's function: a JSON header and raw arrays.

No pickles travel back: bytes that a stranger's process sends are data here, never code."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Bits travel as unsigned integers under the name of their torch dtype.
CARRIERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
WIDTHS = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_LENGTH = struct.Struct("<Q")
LARGEST_MESSAGE = 1 << 31


class BrokenPipeMessageError(Exception):
    """The other side is gone, or what came is no message of ours; the text says which."""


class LateError(Exception):
    """Nothing came in time."""


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor's bits: the name of its dtype, and patterns in its shape."""

    dtype: str
    bits: np.ndarray


def send(pipe: socket.socket, header: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
    """Writes one message; the other side being gone is a BrokenPipeMessageError."""
    arrays = arrays or {}
    described = [[name, each.dtype, list(each.bits.shape)] for name, each in arrays.items()]
    text = json.dumps({**header, "arrays": described}).encode()
    parts = [_LENGTH.pack(len(text)), text, *(each.bits.tobytes() for each in arrays.values())]
    whole = b"".join(parts)
    try:
        pipe.sendall(_LENGTH.pack(len(whole)) + whole)
    except OSError as error:
        raise BrokenPipeMessageError(f"the process is gone: {error.strerror}") from error


def receive(pipe: socket.socket, seconds: float | None = None) -> tuple[dict[str, Any], dict[str, Array]]:
    """One message, all of it within `seconds`."""
    limit = None if seconds is None else time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_read(pipe, _LENGTH.size, limit))
    if length > LARGEST_MESSAGE:
        raise BrokenPipeMessageError(f"a message of {length} bytes is none of the checker's")
    return _parsed(memoryview(_read(pipe, length, limit)))


def _parsed(whole: memoryview) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        (size,) = _LENGTH.unpack(whole[: _LENGTH.size])
        place = _LENGTH.size + size
        header = json.loads(bytes(whole[_LENGTH.size : place]))
        arrays = {}
        for name, dtype, shape in header.pop("arrays"):
            carrier = CARRIERS[WIDTHS[dtype]]
            count = int(np.prod(shape, dtype=np.int64)) * WIDTHS[dtype]
            bits = np.frombuffer(whole[place : place + count], carrier).reshape(shape)
            arrays[name] = Array(dtype, bits)
            place += count
    except (ValueError, KeyError, TypeError, struct.error, AttributeError) as error:
        raise BrokenPipeMessageError("the function's process wrote something else into the checker's pipe") from error
    return header, arrays


def _read(pipe: socket.socket, size: int, limit: float | None) -> bytes:
    parts, missing = [], size
    while missing:
        if limit is not None:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise LateError
        try:
            part = pipe.recv(min(missing, 1 << 20))
        except OSError as error:
            raise BrokenPipeMessageError(f"the process is gone: {error.strerror}") from error
        if not part:
            raise BrokenPipeMessageError("the process is gone")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
