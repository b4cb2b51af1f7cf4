"""Which sequences an update sees: a pure function of the seed and the step, so that there is no position to save.

Every epoch has a permutation of its own, drawn by counters. Knows no data."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from samebits.numerics.elementary.philox import philox_uint32
from samebits.train.algebra import position_after


def sequences_of(step: int, *, seed: int, sequences: int, batch: int) -> NDArray[np.int64]:
    """The `batch` sequences of update `step` (from 1), in their global order.

    Within an epoch no sequence comes twice; the last sequences modulo batch of its permutation are left out."""
    per_epoch = sequences // batch
    if step < 1 or per_epoch < 1:
        raise ValueError(
            f"order: step is {step}, {sequences} sequences, batch {batch}; allowed: at least 1 step of them"
        )
    epoch, within = position_after(step - 1, per_epoch, 1)
    return permutation(seed, epoch, sequences)[within * batch : (within + 1) * batch]


# Two, for the epoch's border; a permutation is a function of its arguments and may be kept.
@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, sequences: int) -> NDArray[np.int64]:
    """All sequences of an epoch, sorted by random 64-bit keys; equal keys keep their order."""
    # A key of its own, so that weights drawn from the same seed share no word with the order.
    key = int.from_bytes(hashlib.sha256(f"{seed} order".encode()).digest()[:8])
    words = philox_uint32(key, epoch, 2 * sequences).astype(np.uint64)
    order = np.argsort(words[0::2] << np.uint64(32) | words[1::2], kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order
