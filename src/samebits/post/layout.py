"""Where each tensor's bytes go in the files of a new model, known before the first of them is computed.

The layout of safetensors: a header of JSON, then the tensors end to end. Knows no arithmetic."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from samebits.model.huggingface import INDEX, WEIGHTS
from samebits.model.json_file import to_json

# Hugging Face's own limit for one file of weights.
SHARD_BYTES: Final = 5 * 10**9
NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
}
DTYPES: Final = {name: dtype for dtype, name in NAMES.items()}
# Headers are padded to this, so that tensors begin where any of their numbers may.
ALIGNMENT: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What a tensor is, without its numbers."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def described(self) -> tuple[str, tuple[int, ...]]:
        """Format and shape, as a digest takes them."""
        return NAMES[self.dtype], self.shape

    @property
    def size(self) -> int:
        """Bytes."""
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """The bytes of one tensor in its file."""

    file: str
    start: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Files that begin with known bytes, the regions in them that are computed, and small files that are whole."""

    heads: Mapping[str, bytes]
    regions: Mapping[str, Region]
    small: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        ends = {name: len(head) for name, head in self.heads.items()}
        for region in self.regions.values():
            ends[region.file] = max(ends[region.file], region.start + region.size)
        return ends


def safetensors_layout(entries: Mapping[str, Entry], shard_bytes: int = SHARD_BYTES) -> Layout:
    """One file, or shards with their index where one would be larger than `shard_bytes`."""
    shards = _shards(entries, shard_bytes)
    many = len(shards) > 1
    heads: dict[str, bytes] = {}
    regions: dict[str, Region] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors" if many else WEIGHTS
        heads[file], starts = _head({name: entries[name] for name in names})
        regions |= {name: Region(file=file, start=starts[name], size=entries[name].size) for name in names}
    if not many:
        return Layout(heads=heads, regions=regions)
    total = sum(entry.size for entry in entries.values())
    index: dict[str, Any] = {
        "metadata": {"total_size": total},
        "weight_map": {name: region.file for name, region in sorted(regions.items())},
    }
    return Layout(heads=heads, regions=regions, small={INDEX: to_json(index)})


def _shards(entries: Mapping[str, Entry], most: int) -> list[list[str]]:
    """Names in their order, cut where a file would grow too large; a tensor larger than a file has one of its own."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, entry in entries.items():
        if shards[-1] and filled + entry.size > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += entry.size
    return shards


def _head(entries: Mapping[str, Entry]) -> tuple[bytes, dict[str, int]]:
    """The header of one file, and where in the file each tensor begins. Wider numbers go first, as the library asks."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offsets, end = {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: -item[1].dtype.itemsize):
        offsets[name] = end
        described[name] = {
            "dtype": NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [end, end + entry.size],
        }
        end += entry.size
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    return head, {name: len(head) + offset for name, offset in offsets.items()}
