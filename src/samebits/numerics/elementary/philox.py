"""Philox4x32-10: random words that depend on (seed, stream, position) alone, so every backend draws the same ones.

Knows no distribution: it hands out 32-bit integers. Key = the seed's two halves; counter = (block low, block high,
stream, 0); word 4 * block + i is output i of that block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from samebits import native
from samebits.numerics.elementary.evaluate import run
from samebits.numerics.elementary.functions import PHILOX

Words = NDArray[np.uint32]


def _check(seed: int, stream: int, count: int) -> None:
    for name, value, limit in (("seed", seed, 1 << 64), ("stream", stream, 1 << 32), ("count", count, 1 << 62)):
        if not 0 <= value < limit:
            raise ValueError(f"philox: {name} must be in 0..{limit - 1}, got {name}={value}")


def philox_blocks(counter: Words, key: Words) -> Words:
    """The definition: counters of shape (blocks, 4) and a key of two words to words of shape (blocks, 4)."""
    keys = np.broadcast_to(key, (len(counter), 2))
    columns = [np.ascontiguousarray(column) for column in (*counter.T, *keys.T)]
    return np.stack(run(PHILOX, *columns), axis=1)


def philox_uint32(seed: int, stream: int, count: int) -> Words:
    """The first `count` words of a stream, by numpy."""
    _check(seed, stream, count)
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    low, high = blocks.astype(np.uint32), (blocks >> np.uint64(32)).astype(np.uint32)
    counter = np.stack([low, high, np.full_like(low, stream), np.zeros_like(low)], axis=1)
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
    return philox_blocks(counter, key).reshape(-1)[:count]


def philox_uint32_native(
    seed: int, stream: int, count: int, instruction_set: str | None = None, threads: int | None = None
) -> Words:
    """The same words from the C++ library."""
    _check(seed, stream, count)
    words = np.empty(count, np.uint32)
    native.call(
        "philox", "Qupq", seed, stream, words.ctypes.data, count, threads=threads, instruction_set=instruction_set
    )
    return words
