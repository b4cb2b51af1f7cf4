"""The container that a .gguf file is: its metadata and where its tensors lie, read strictly.

Every count, length and offset is held against the size of the file before anything is made of it. Knows no model."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MOST_TENSORS: Final = 2**16
MOST_KEYS: Final = 2**12
MOST_HEADER_BYTES: Final = 2**28
MOST_ITEMS: Final = 2**21
LONGEST_NAME: Final = 2**10
LONGEST_TEXT: Final = 2**20
MOST_DIMENSIONS: Final = 4
MOST_ALIGNMENT: Final = 2**16
# By their numbers in the file; 8 is a text, 9 an array.
SCALARS: Final = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
NUMBERS: Final = {
    kind: struct.Struct(f"<{letter}") for kind, letter in zip(SCALARS.values(), "BbHhIif?Qqd", strict=True)
}
TEXT: Final = 8
ARRAY: Final = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where one tensor lies and how it is stored."""

    shape: tuple[int, ...]
    """As a matrix is written, rows first."""
    kind: int
    """The number of its format."""
    start: int
    size: int
    """Bytes."""


class File:
    """An opened .gguf file: `values` of its metadata, `places` of its tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file() or path.stat().st_size < 24:
            raise ValueError(f"{path}: is not a GGUF file (shorter than 24 bytes)")
        with path.open("rb") as opened:
            self._data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        try:
            self._read()
        except BaseException:
            self._data.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._data.close()

    def bytes_of(self, place: Place) -> np.ndarray:
        """A copy of a tensor's bytes, so that nothing points into the file once it is closed."""
        return np.frombuffer(self._data, np.uint8, place.size, place.start).copy()

    def _read(self) -> None:
        magic = self._take(4)
        version = self._number("<u4")
        if magic != MAGIC or version not in VERSIONS:
            raise self._error(f"begins with {magic!r} and version {version}", "GGUF, version 2 or 3, little-endian")
        tensors, keys = self._count(MOST_TENSORS, "tensors"), self._count(MOST_KEYS, "keys")
        self.values: dict[str, Any] = {}
        for _ in range(keys):
            name = self._text(LONGEST_NAME)
            if name in self.values:
                raise self._error(f"has the key {name!r} twice", "each once")
            self.values[name] = self._value(self._number("<u4"))
        infos = [self._info() for _ in range(tensors)]
        alignment = self.values.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
            raise self._error(f"aligns to {alignment!r:.40}", f"a power of two, at most {MOST_ALIGNMENT}")
        base = -(-self._at // alignment) * alignment
        self.places: dict[str, Place] = {}
        for name, shape, kind, offset in infos:
            if name in self.places:
                raise self._error(f"has the tensor {name!r} twice", "each once")
            self.places[name] = self._place(name, shape, kind, offset, base, alignment)
        self._check_apart()

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._text(LONGEST_NAME), self._number("<u4")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise self._error(f"tensor {name!r} has {dimensions} dimensions", f"1 to {MOST_DIMENSIONS}")
        sizes = tuple(self._number("<u8") for _ in range(dimensions))
        return name, sizes[::-1], self._number("<u4"), self._number("<u8")

    def _place(self, name: str, shape: tuple[int, ...], kind: int, offset: int, base: int, alignment: int) -> Place:
        block, size_of_block = block_of(kind, f"{self.path}: tensor {name!r}")
        whole = len(self._data) - base
        if not all(shape) or shape[-1] % block or offset % alignment or max(*shape, offset) > len(self._data) * block:
            raise self._error(
                f"tensor {name!r} has shape {shape} at {offset}", f"rows of {block}, in the file, aligned"
            )
        size = prod(shape) // block * size_of_block
        if offset + size > whole:
            raise self._error(f"tensor {name!r} ends at {offset + size} of {whole} bytes", "inside the file")
        return Place(shape=shape, kind=kind, start=base + offset, size=size)

    def _check_apart(self) -> None:
        """Tensors that share bytes would let a small file ask for any amount of memory."""
        end, before = 0, ""
        for name, place in sorted(self.places.items(), key=lambda item: item[1].start):
            if place.start < end:
                raise self._error(f"tensors {before!r} and {name!r} share bytes", "bytes of their own")
            end, before = place.start + place.size, name

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text(LONGEST_TEXT)
        if kind != ARRAY:
            return self._number(self._scalar(kind))
        inner = self._number("<u4")
        count = self._count(MOST_ITEMS, "items in an array")
        if inner == TEXT:
            return [self._text(LONGEST_TEXT) for _ in range(count)]
        kind_of_items = np.dtype(self._scalar(inner))
        return np.frombuffer(self._take(count * kind_of_items.itemsize), kind_of_items)

    def _scalar(self, kind: int) -> str:
        if kind not in SCALARS:
            raise self._error(f"has a value of kind {kind}", "numbers, texts, and arrays of these")
        return SCALARS[kind]

    def _count(self, most: int, what: str) -> int:
        count: int = self._number("<u8")
        if count > most or count > len(self._data):
            raise self._error(f"says {count} {what}", f"at most {min(most, len(self._data))}")
        return count

    def _text(self, longest: int) -> str:
        size = self._number("<u8")
        if size > longest:
            raise self._error(f"has a text of {size} bytes at {self._at}", f"at most {longest}")
        try:
            return self._take(size).decode("utf-8")
        except UnicodeDecodeError:
            raise self._error(f"has a text at {self._at - size} that is no UTF-8", "UTF-8") from None

    def _number(self, kind: str) -> Any:
        form = NUMBERS[kind]
        return form.unpack(self._take(form.size))[0]

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise self._error(f"ends at {len(self._data)}, {size} bytes are wanted at {self._at}", "a whole file")
        if self._at + size > MOST_HEADER_BYTES:
            raise self._error(f"has {self._at + size} bytes of metadata and more", f"at most {MOST_HEADER_BYTES}")
        self._at += size
        return self._data[self._at - size : self._at]

    def _error(self, found: str, allowed: str) -> ValueError:
        return ValueError(f"{self.path}: {found}; allowed: {allowed}")


def block_of(kind: int, name: str) -> tuple[int, int]:
    """Numbers in a block of this format, and bytes of it."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (KeyError, ValueError):
        raise ValueError(f"{name} has the format {kind}; allowed: those of the gguf library") from None
    return numbers, size
