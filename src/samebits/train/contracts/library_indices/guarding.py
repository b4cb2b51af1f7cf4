"""Functions of the C++ library called on copies of their buffers, each against a page that may not be touched.

A buffer ends where such a page begins, or begins where one ends, to the byte; an access beside it ends the process.
Buffers are found in the frames of those who call: how long one is follows from the tensor or array that it is of, and a
pointer to anything else is refused. Knows no operator."""

from __future__ import annotations

import ctypes
import mmap
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import numpy as np
from torch import Tensor

from samebits import native

PAGE: Final = mmap.PAGESIZE
SIDES: Final = ("end", "start")
# Frames in which a caller keeps what it hands over: the kernel's file, `run`, and what calls them.
FRAMES: Final = 6
DEPTH: Final = 4
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_PROTECTED: Final = 0
# Bytes that a planted fault takes from a buffer: of the shortest elements one.
SHORTER: Final = 2


@dataclass(slots=True)
class Guarded:
    """So many bytes between two pages that may not be touched, of which one is their neighbour."""

    size: int
    side: str
    open: bool
    area: mmap.mmap = field(init=False)
    address: int = field(init=False)

    def __post_init__(self) -> None:
        inner = max(1, -(-self.size // PAGE)) * PAGE
        self.area = mmap.mmap(-1, inner + 2 * PAGE)
        view = ctypes.c_char.from_buffer(self.area)
        first = ctypes.addressof(view)
        del view
        for place in (first, first + PAGE + inner):
            if not self.open and _libc.mprotect(place, PAGE, _PROTECTED):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.address = first + PAGE + (inner - self.size if self.side == "end" else 0)


@dataclass(slots=True)
class Found:
    """Memory that a caller owns."""

    address: int
    size: int
    owner: Any


def _memory(value: Any) -> Found | None:
    """What a tensor or an array spans, from its first element to its last; of words of a table, all."""
    if isinstance(value, Tensor):
        spans = [(size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)]
        elements = 1 + sum(spans) if value.numel() else 0
        return Found(value.data_ptr(), elements * value.element_size(), value)
    if isinstance(value, np.ndarray):
        return Found(value.ctypes.data, value.nbytes, value)
    if isinstance(value, array):
        address, count = value.buffer_info()
        return Found(address, count * value.itemsize, value)
    if isinstance(value, ctypes.Array | ctypes.c_double | ctypes.c_uint32 | ctypes.c_int64):
        return Found(ctypes.addressof(value), ctypes.sizeof(value), value)
    return None


def _inside(value: Any, depth: int = DEPTH) -> Iterator[Found]:
    """Memory that a value holds, or what it is made of."""
    found = _memory(value)
    if found is not None:
        yield found
    elif depth and isinstance(value, list | tuple):
        for each in value:
            yield from _inside(each, depth - 1)
    elif depth and type(value).__module__.startswith("samebits.") and hasattr(value, "__dict__"):
        yield from _inside(list(vars(value).values()), depth - 1)
    elif depth and hasattr(type(value), "__slots__") and type(value).__module__.startswith("samebits."):
        yield from _inside([getattr(value, name, None) for name in type(value).__slots__], depth - 1)


def _found(frame: FrameType | None) -> dict[int, Found]:
    """By address; of two with one address the longer, for a view may be of a part."""
    found: dict[int, Found] = {}
    for _ in range(FRAMES):
        if frame is None:
            break
        for value in list(frame.f_locals.values()):
            for each in _inside(value):
                if each.size >= found.get(each.address, each).size:
                    found[each.address] = each
        frame = frame.f_back
    return found


class UnknownBufferError(RuntimeError):
    """A pointer to memory of which nobody knows how long it is."""


@dataclass(slots=True)
class Calls:
    """Every call within `guarding`: announced before it is made, so that the last one named is what ended it."""

    side: str
    announce: Callable[[str], None]
    shorter: tuple[str, int] = ("", 0)
    """Planted fault: the function, and which of its buffers lacks bytes on the side of the page."""
    open: bool = False
    """Planted fault: pages may be touched."""

    def call(self, name: str, signature: str, isa: str, function: Any, arguments: tuple[Any, ...]) -> Any:
        known, kept = _found(sys._getframe(2)), list[tuple[Found, Guarded]]()
        self.announce(f"{name} {isa} {self.side}")

        def moved(address: int, shorter: int = 0) -> int:
            if address not in known:
                raise UnknownBufferError(f"{name}: nobody keeps what lies at argument {address:#x}")
            for found, copy in kept:
                if found.address == address:
                    return copy.address
            found = known[address]
            copy = Guarded(max(0, found.size - shorter), self.side, self.open)
            kept.append((found, copy))
            ctypes.memmove(copy.address, found.address, copy.size)
            if _is_table(found.owner):
                _redirect(copy, known, moved)
            return copy.address - (shorter if self.side == "start" else 0)

        given = list(arguments)
        places = [place for place, letter in enumerate(signature) if letter == "p" and given[place]]
        for number, place in enumerate(places):
            given[place] = moved(_address(given[place]), SHORTER if self.shorter == (name, number) else 0)
        status = function(*given)
        for found, copy in kept:
            if not _is_table(found.owner):
                ctypes.memmove(found.address, copy.address, copy.size)
        return status


def _address(value: Any) -> int:
    return value if isinstance(value, int) else ctypes.addressof(value)


def _is_table(owner: Any) -> bool:
    """Words among which there are addresses."""
    return isinstance(owner, array) or (isinstance(owner, ctypes.Array) and owner._type_ is ctypes.c_void_p)


def _redirect(copy: Guarded, known: dict[int, Found], moved: Callable[[int], int]) -> None:
    words = (ctypes.c_uint64 * (copy.size // 8)).from_address(copy.address)
    for place, word in enumerate(words):
        if word in known and known[word].size:
            words[place] = moved(word)


@contextmanager
def guarding(calls: Calls) -> Iterator[None]:
    """Within the block every function of the library is called on guarded copies."""
    before = native.function

    def function(name: str, signature: str, instruction_set: str | None = None) -> Any:
        plain = before(name, signature, instruction_set)
        isa = instruction_set or native.instruction_sets()[-1]
        return lambda *arguments: calls.call(name, signature, isa, plain, arguments)

    native.function = function  # type: ignore[assignment]
    try:
        yield
    finally:
        native.function = before
