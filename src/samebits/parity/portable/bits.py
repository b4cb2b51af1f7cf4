"""Digests of results: the bits, the shape and the dtype of a tensor or of numbers. Two NaNs are one.

Which NaN an operation gives is the processor's choice; that it is one is not."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

# Of each format of floats: the integers of its width, and the pattern of infinity, above which magnitudes are NaN.
_PATTERNS: Final = {
    torch.float32: (torch.int32, 0x7F800000),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float16: (torch.int16, 0x7C00),
}


# Hexadecimal digits of SHA-256 that are kept: 128 bits, and the record stays small.
DIGITS: Final = 32


def _told(state: hashlib._Hash) -> str:
    return state.hexdigest()[:DIGITS]


def digest(tensor: Tensor) -> str:
    """SHA-256 of dtype, shape and bits, smallest byte first."""
    values = tensor.detach().cpu().contiguous()
    name = str(values.dtype).removeprefix("torch.")
    state = hashlib.sha256(f"{name} {list(values.shape)} ".encode())
    if values.dtype in _PATTERNS:
        integers, infinity = _PATTERNS[values.dtype]
        patterns: np.ndarray = values.view(integers).numpy().copy()
        magnitude = patterns & np.iinfo(patterns.dtype).max
        patterns[magnitude > infinity] = infinity + 1
    else:
        patterns = values.numpy()
    state.update(patterns.astype(patterns.dtype.newbyteorder("<")).tobytes())
    return _told(state)


def digest_of_numbers(numbers: Sequence[float]) -> str:
    """SHA-256 of float64 numbers."""
    return _told(hashlib.sha256(b"float64 " + struct.pack(f"<{len(numbers)}d", *numbers)))


def digest_of_digests(digests: Mapping[str, str]) -> str:
    """One for many, whatever order they were made in."""
    lines = "\n".join(f"{name} {digests[name]}" for name in sorted(digests))
    return _told(hashlib.sha256(lines.encode()))
