"""Weight gradients over micro-batches: the second backward goes on with the chain that the first one left in `.grad`.

Torch would add two finished sums, which is another order than one sum over all rows. Remembers, while a gradient's
memory lives, what it was computed from; knows no operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Resume = Callable[[Tensor], None]
"""accumulator of the result's shape, float32 <- the result's chains, resumed from it."""

KEPT_DEAD = 16
"""Results that may be gone before what they were computed from is let go: looking at all of them takes time."""


@dataclass(frozen=True, slots=True)
class _Chain:
    memory: Any
    """A weak reference: it keeps nothing alive, and its number is given to no other memory while it stands."""
    shape: torch.Size
    strides: tuple[int, ...]
    version: int
    resume: Resume
    crosses_rows: bool
    """Whether the batch was summed away: a sum of such sums cannot go on, and is not remembered."""


def _is_gone(chain: _Chain) -> bool:
    """Whether nothing uses the memory any more. By StorageWeakRef's own method it takes five times as long."""
    return bool(torch.UntypedStorage._expired(chain.memory.cdata))


class Chains:
    """The results of one backward that could be computed again from a sum so far."""

    def __init__(self) -> None:
        self._known: dict[int, _Chain] = {}
        self._calls = 0

    def remember(self, result: Tensor, given: Iterable[Tensor], resume: Resume, *, crosses_rows: bool = False) -> None:
        """A result in one piece of memory of its own, and what it was computed from."""
        if not result.is_floating_point() or not result.is_contiguous() or result.numel() == 0:
            return
        if any((known := self._chain_of(each)) is not None and known.crosses_rows for each in given):
            return
        self._calls += 1
        if self._calls % KEPT_DEAD == 0:
            self.sweep()
        memory: Any = StorageWeakRef(result.untyped_storage())  # type: ignore[no-untyped-call]
        self._known[memory.cdata] = _Chain(memory, result.shape, result.stride(), result._version, resume, crosses_rows)

    def sweep(self) -> None:
        """Lets go what results were computed from that are gone."""
        self._known = {key: chain for key, chain in self._known.items() if not _is_gone(chain)}

    def _chain_of(self, tensor: Tensor) -> _Chain | None:
        chain = self._known.get(tensor.untyped_storage()._cdata) if self._known else None
        return None if chain is None or _is_gone(chain) or tensor._version != chain.version else chain

    def unrounded(self, rounded: Tensor, dtype: torch.dtype | None) -> Tensor | None:
        """A gradient of 16 bits that is about to be widened to float32: its chains before they were rounded.

        So a weight that autocast converted gets the sum itself, and the next micro-batch can go on with it."""
        chain = self._chain_of(rounded)
        if chain is None or dtype != torch.float32 or rounded.dtype == torch.float32:
            return None
        accumulator = torch.zeros(chain.shape, dtype=torch.float32, device=rounded.device)
        if rounded.shape == chain.shape and rounded.stride() == chain.strides:
            seen = accumulator
        elif rounded.dim() == 2 and rounded.T.shape == chain.shape and rounded.T.stride() == chain.strides:
            seen = accumulator.T
        elif rounded.is_contiguous() and rounded.numel() == accumulator.numel():
            seen = accumulator.view(rounded.shape)
        else:
            return None
        chain.resume(accumulator)
        self.remember(accumulator, (), chain.resume, crosses_rows=chain.crosses_rows)
        return seen

    def forget(self, tensor: Tensor) -> None:
        """Its memory was written to: it is no longer what it was computed from."""
        if self._known:
            self._known.pop(tensor.untyped_storage()._cdata, None)

    def go_on(self, gradient: Tensor, added: Tensor) -> bool:
        """gradient <- gradient's chains resumed with what `added` was computed from; False where that is not known."""
        chain = self._known.pop(added.untyped_storage()._cdata, None) if self._known else None
        if chain is None or _is_gone(chain) or added._version != chain.version:
            return False
        if gradient.dtype != torch.float32 or added.numel() != chain.shape.numel():
            return False
        if added.shape == chain.shape and added.stride() == chain.strides:
            accumulator = gradient
        elif added.dim() == 2 and added.T.shape == chain.shape and added.T.stride() == chain.strides:
            accumulator = gradient.T
        elif added.is_contiguous() and gradient.is_contiguous():
            accumulator = gradient.view(chain.shape)
        else:
            return False
        if not (accumulator.is_contiguous() or (accumulator.dim() == 2 and accumulator.T.is_contiguous())):
            return False
        chain.resume(accumulator)
        return True
