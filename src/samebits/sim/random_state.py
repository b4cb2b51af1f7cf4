"""The random state of each rank: torch's default generator, Python's `random` and numpy's, handed over with the baton.

All three belong to the process; ranks of one process would draw from each other's streams. Every rank starts with the
same states: torch's of a fresh process, and seed 0 for the other two, so that runs repeat. Setting numpy's state takes
a tenth of a millisecond, so that it is left alone until somebody draws from it."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

# MT19937 of numpy: 624 words of 4 bytes, and the place in them.
_NUMPY_BYTES: Final = 625 * 4


def _numpy_words() -> bytes:
    """What numpy's default generator holds now; only compared, never written."""
    generator = np.random.mtrand.get_bit_generator()
    return ctypes.string_at(generator.ctypes.state_address, _NUMPY_BYTES)


class NumpyState:
    """A moment of numpy's default generator. `words` is how it looks in memory."""

    __slots__ = ("state", "words")

    def __init__(self, state: Any) -> None:
        self.state = state
        self.words = b""

    def put(self) -> None:
        np.random.set_state(self.state)
        self.words = _numpy_words()

    def now(self) -> NumpyState:
        """The state after whatever was drawn since `put`: this one where nothing was.

        A normal deviate that is kept for the next call can be taken without a change of the words."""
        if not self.state[3] and _numpy_words() == self.words:
            return self
        drawn = NumpyState(np.random.get_state())
        drawn.words = _numpy_words()
        return drawn


@dataclass(frozen=True, slots=True)
class RandomState:
    """A moment of the three generators."""

    torch: Tensor
    python: tuple[Any, ...]
    numpy: NumpyState


class Streams:
    """Whose states the generators hold now, and the states of the others."""

    def __init__(self, ranks: int) -> None:
        fresh = RandomState(
            torch.Generator().get_state(), random.Random(0).getstate(), NumpyState(np.random.RandomState(0).get_state())
        )
        self._states = dict.fromkeys(range(ranks), fresh)
        self._main: RandomState | None = None
        self._holder = -1

    def hand_to(self, rank: int) -> None:
        """Puts a rank's own states in, and keeps those of the rank before."""
        if rank == self._holder:
            return
        if self._holder < 0:
            self._main = held = RandomState(torch.get_rng_state(), random.getstate(), NumpyState(np.random.get_state()))
        else:
            held = self._keep()
        self._put(self._states[rank], held)
        self._holder = rank

    def _keep(self) -> RandomState:
        before = self._states[self._holder]
        held = RandomState(torch.get_rng_state(), random.getstate(), before.numpy.now())
        self._states[self._holder] = held
        return held

    def _put(self, wanted: RandomState, held: RandomState) -> None:
        torch.set_rng_state(wanted.torch)
        random.setstate(wanted.python)
        if wanted.numpy is not held.numpy:
            wanted.numpy.put()

    def restore(self) -> None:
        """The caller's own states, as they were before the ranks; theirs are kept until they go on."""
        if self._main is not None and self._holder >= 0:
            self._put(self._main, self._keep())
        self._holder = -1


class SharedStreams(Streams):
    """Planted fault: every rank draws from one stream."""

    def hand_to(self, rank: int) -> None:
        if self._holder < 0:
            super().hand_to(rank)
