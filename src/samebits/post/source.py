"""The tensors of a model's files, read piece by piece into memory of their own: never a whole tensor, never a mapping.

A mapped page counts as memory for as long as the file is open. Knows no arithmetic."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Tensor

from samebits.model.huggingface import CONFIG, INDEX, MOST_CONFIG_BYTES, READABLE, opened_file, some_names, weight_files
from samebits.model.json_file import parse_json, read_json
from samebits.post.layout import DTYPES, Entry

# Numbers that are read, computed and written at a time; decides speed and memory, and no bit. A multiple of the blocks
# over which merging sums, and small enough for torch to leave it to one thread, which is quicker than to share it.
PIECE: Final = 2**15


class Source:
    """An opened folder in Hugging Face's layout: what it holds, and its numbers piece by piece."""

    def __init__(self, path: str | Path) -> None:
        self.folder = Path(path)
        if not (self.folder / CONFIG).is_file():
            raise ValueError(f"{path}: has no {CONFIG}; allowed: a folder with {CONFIG} and safetensors")
        self.config: dict[str, Any] = read_json(self.folder / CONFIG, MOST_CONFIG_BYTES)
        self._places: dict[str, tuple[int, int]] = {}
        self._stack = ExitStack()
        self.entries: dict[str, Entry] = {}
        self.files: dict[str, tuple[int, int]] = {}
        """Size in bytes and time of the last change of each file of weights."""
        try:
            for file in weight_files(self.folder):
                self._open(file)
            self._check_index()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _open(self, file: Path) -> None:
        # The library holds the header against the file's size; only then is it believed.
        with ExitStack() as checked:
            opened_file(file, checked)
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self._stack.callback(os.close, handle)
        status = os.fstat(handle)
        self.files[file.name] = (status.st_size, status.st_mtime_ns)
        length = int.from_bytes(os.pread(handle, 8, 0), "little")
        header = parse_json(os.pread(handle, length, 8), str(file))
        header.pop("__metadata__", None)
        for name, each in header.items():
            if name in self.entries:
                raise ValueError(f"{file}: {name} is in another file too; allowed: once")
            if each["dtype"] not in READABLE:
                raise ValueError(f"{file}: {name} is {each['dtype']}; allowed: {', '.join(READABLE)}")
            self.entries[name] = Entry(dtype=DTYPES[each["dtype"]], shape=tuple(each["shape"]))
            self._places[name] = (handle, 8 + length + each["data_offsets"][0])

    def _check_index(self) -> None:
        """A tensor that the index names and no file has would be lost without a word."""
        if not (self.folder / INDEX).is_file():
            return
        lacking = read_json(self.folder / INDEX)["weight_map"].keys() - self.entries.keys()
        if lacking:
            raise ValueError(f"{self.folder}: lacks {some_names(lacking)}; allowed: all weights that {INDEX} names")

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Numbers start to stop of a tensor, in the order in which they are stored."""
        entry = self.entries[name]
        handle, begin = self._places[name]
        piece = torch.empty(stop - start, dtype=entry.dtype)
        view = raw(piece)
        at = begin + start * entry.dtype.itemsize
        while view:
            got = os.preadv(handle, [view], at)
            if got == 0:
                raise ValueError(f"{self.folder}: {name} ends at byte {at} of its file; allowed: a whole file")
            view, at = view[got:], at + got
        return piece

    def whole(self, name: str) -> Tensor:
        """A tensor with its shape."""
        entry = self.entries[name]
        return self.read(name, 0, entry.count).reshape(entry.shape)

    def identity(self) -> dict[str, Any]:
        """What tells this model from another without reading its numbers."""
        return {"folder": str(self.folder.resolve()), "files": {name: list(each) for name, each in self.files.items()}}


def pieces(count: int, size: int = PIECE) -> Iterator[tuple[int, int]]:
    """Start and stop of each piece of `count` numbers."""
    return ((start, min(start + size, count)) for start in range(0, count, size))


def raw(piece: Tensor) -> memoryview:
    """The bytes of a tensor, in place where it is contiguous."""
    found: memoryview = piece.contiguous().view(torch.uint8).reshape(-1).numpy().data
    return found


class Hash:
    """SHA-256 of a tensor's bytes as they come."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, piece: Tensor) -> None:
        self._hash.update(raw(piece))

    @property
    def hex(self) -> str:
        return self._hash.hexdigest()


def digest_of(described: Mapping[str, tuple[str, Sequence[int]]], digests: Mapping[str, str]) -> str:
    """One digest for all tensors: of their names, formats, shapes and bytes, however files cut or order them."""
    whole = hashlib.sha256()
    for name in sorted(described):
        kind, shape = described[name]
        whole.update(f"{name} {kind} {list(shape)} {digests[name]}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Of whole tensors in memory, as of those in files."""
    digests = {}
    for name, weight in weights.items():
        whole = Hash()
        whole.add(weight.detach())
        digests[name] = whole.hex
    described = {name: Entry(dtype=each.dtype, shape=tuple(each.shape)).described for name, each in weights.items()}
    return digest_of(described, digests)
