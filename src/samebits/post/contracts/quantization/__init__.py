"""Weights in groups of few bits, as the contract of quantization asks for them: bytes, numbers, there and back.

The format goes by its place in KINDS."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from samebits.post.grouped import FORMATS, Format, Grouped, packed_format, round_to_nearest
from samebits.post.grouped_bytes import gguf_bytes

PACKED: Final = 32
KINDS: Final = (*FORMATS.values(), packed_format(PACKED))
IN_FILES: Final = len(FORMATS)
"""Of KINDS, those that a .gguf file has."""


def kind_of(kind: Tensor) -> Format:
    return KINDS[int(kind)]


def stored(weight: Tensor, kind: Tensor) -> Tensor:
    """(N, bytes of a row): what a .gguf file holds of it."""
    data = gguf_bytes(round_to_nearest(weight, KINDS[int(kind) % IN_FILES]))
    return torch.from_numpy(np.frombuffer(data, np.uint8).reshape(len(weight), -1).copy())


def numbers(codes: Tensor, scale: Tensor, minimum: Tensor, kind: Tensor) -> Tensor:
    """float32 (N, K): what codes (N, K), a scale and a minimum for each group (N, K / group) stand for."""
    format = kind_of(kind)
    return Grouped(
        format=format,
        codes=codes.to(torch.int8).reshape(len(codes), -1, format.group),
        scale=scale.to(format.store),
        minimum=minimum.to(format.store) if format.minimum else None,
    ).numbers()


def returned(weight: Tensor, kind: Tensor) -> Tensor:
    """float32 (N, K): rounded to the nearest codes and read again."""
    return round_to_nearest(weight, kind_of(kind)).numbers()


def there_and_back(patterns: Tensor) -> Tensor:
    """int16 (N): each pattern as the scale of a group whose first code is 1, read as a number and stored again."""
    scale = patterns.view(torch.float16)[:, None]
    codes = torch.ones(len(scale), 1, 32, dtype=torch.int8)
    read = Grouped(format=FORMATS["q8_0"], codes=codes, scale=scale, minimum=None).numbers()[:, 0]
    return read.to(torch.float16).view(torch.int16)
