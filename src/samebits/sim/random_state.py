"""The random state of one rank: torch's default generator, Python's `random` and numpy's, taken and put as one.

All three belong to the process; ranks of one process would draw from each other's streams. Each rank starts as a fresh
process does: torch with its default seed, the other two with a seed made of the rank, so that runs repeat."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RandomState:
    """A moment of the three generators."""

    torch: Tensor
    python: tuple[Any, ...]
    numpy: Any

    @classmethod
    def taken(cls) -> RandomState:
        return cls(torch.get_rng_state(), random.getstate(), np.random.get_state())

    @classmethod
    def fresh(cls, rank: int) -> RandomState:
        """That of rank `rank` before its first draw."""
        return cls(
            torch.Generator().get_state(), random.Random(rank).getstate(), np.random.RandomState(rank).get_state()
        )

    def put(self) -> None:
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


class Streams:
    """Whose state the generators hold now, and the states of the others."""

    def __init__(self, ranks: int) -> None:
        self._states = {rank: RandomState.fresh(rank) for rank in range(ranks)}
        self._main: RandomState | None = None
        self._holder = -1

    def hand_to(self, rank: int) -> None:
        """Puts a rank's own state in, and keeps that of the rank before."""
        if rank == self._holder:
            return
        if self._holder < 0:
            self._main = RandomState.taken()
        else:
            self._states[self._holder] = RandomState.taken()
        self._states[rank].put()
        self._holder = rank

    def restore(self) -> None:
        """The caller's own state, as it was before the ranks; theirs are kept until they go on."""
        if self._main is not None and self._holder >= 0:
            self._states[self._holder] = RandomState.taken()
            self._main.put()
        self._holder = -1


class SharedStreams(Streams):
    """Planted fault: every rank draws from one stream."""

    def hand_to(self, rank: int) -> None:
        if self._holder < 0:
            super().hand_to(rank)
