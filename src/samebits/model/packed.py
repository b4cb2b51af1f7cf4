"""Weights of four bits as compressed-tensors packs them (`pack-quantized`), read back into numbers.

Symmetric codes in groups: eight codes, each raised by 8, in an int32 from its lowest bits on; a scale a group. A number
is its code times its scale, in float32, rounded once. Knows no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

PARTS: Final = ("weight_packed", "weight_scale", "weight_shape")
FORMAT: Final = "pack-quantized"


def group_of(config: Mapping[str, Any], name: str) -> int | None:
    """Numbers in a group, by a config.json; None where the weights are not packed."""
    told = config.get("quantization_config")
    if told is None:
        return None
    groups = told.get("config_groups") if isinstance(told, dict) else None
    weights = [each.get("weights") for each in groups.values()] if isinstance(groups, dict) else []
    wanted = {"num_bits": 4, "symmetric": True, "strategy": "group", "type": "int"}
    for each in weights[:1]:
        fits = isinstance(each, dict) and all(each.get(key) == value for key, value in wanted.items())
        if told.get("format") == FORMAT and len(weights) == 1 and fits and type(each.get("group_size")) is int:
            return int(each["group_size"])
    raise ValueError(f"{name}: quantization_config is not known; allowed: {FORMAT}, 4 bits, symmetric, by groups")


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """The three parts of one weight in their files; looks like a file that holds it as float32."""

    stem: str
    files: Mapping[str, Any]
    group: int

    def _part(self, part: str) -> Tensor:
        found: Tensor = self.files[f"{self.stem}.{part}"].get_tensor(f"{self.stem}.{part}")
        return found

    def get_shape(self) -> list[int]:
        shape = self._part("weight_shape").tolist()
        return shape if isinstance(shape, list) and all(type(each) is int for each in shape) else []

    def get_dtype(self) -> str:
        return "F32"

    def get_slice(self, name: str) -> PackedWeight:
        return self

    def get_tensor(self, name: str) -> Tensor:
        rows, columns = self.get_shape()
        return unpacked(
            self._part("weight_packed"), self._part("weight_scale"), (rows, columns), self.group, f"{self.stem}.weight"
        )


def with_packed(found: Mapping[str, Any], group: int, name: str) -> dict[str, Any]:
    """Files by weight, the parts of packed ones put together."""
    stems = [each.removesuffix(f".{PARTS[0]}") for each in found if each.endswith(f".{PARTS[0]}")]
    whole = dict(found)
    for stem in stems:
        files = {f"{stem}.{part}": whole.pop(f"{stem}.{part}", None) for part in PARTS}
        if None in files.values() or f"{stem}.weight" in whole:
            raise ValueError(f"{name}: {stem} is not packed as {', '.join(PARTS)}; allowed: all of them, and no weight")
        whole[f"{stem}.weight"] = PackedWeight(stem, files, group)
    return whole


def unpacked(words: Tensor, scale: Tensor, shape: tuple[int, ...], group: int, name: str) -> Tensor:
    """float32 numbers of a matrix."""
    rows, columns = shape
    wanted = ((rows, columns // 8), (rows, columns // max(group, 1)))
    if group < 1 or columns % group or columns % 8 or (tuple(words.shape), tuple(scale.shape)) != wanted:
        raise ValueError(
            f"{name}: is packed as {tuple(words.shape)} with scales {tuple(scale.shape)}, config.json gives {shape} in"
            f" groups of {group}; allowed: {wanted[0]} and {wanted[1]}"
        )
    shifts = np.arange(8, dtype=np.uint32) * np.uint32(4)
    codes = (words.numpy().view(np.uint32)[..., None] >> shifts & np.uint32(15)).astype(np.int8) - np.int8(8)
    found = torch.from_numpy(codes).reshape(rows, -1, group).float() * scale.float()[..., None]
    return found.reshape(rows, columns)
