"""Memory between sentinels: what a kernel writes outside of its buffer is found where it must not be.

Knows no kernel. While it is in force, torch's makers of tensors hand out such memory too, for results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

SENTINEL = -1536.0
# Elements on each side: more than a product of the sizes that are tried, so that a swap of sizes stays inside.
ZONE = 8192
MAKERS = ("empty", "empty_like", "zeros", "full")


class Guards:
    """Buffers with a zone on each side."""

    def __init__(self) -> None:
        self._held: list[Tensor] = []
        self._full: Callable[..., Tensor] = torch.full

    def place(self, tensor: Tensor) -> Tensor:
        """A copy of the tensor between two zones."""
        count = tensor.numel()
        held = self._full((2 * ZONE + count,), SENTINEL, dtype=tensor.dtype)
        held[ZONE : ZONE + count] = tensor.detach().reshape(-1)
        self._held.append(held)
        return held[ZONE : ZONE + count].view(tensor.shape)

    def damaged(self) -> int:
        """How many sentinels are gone."""
        zones = [zone for held in self._held for zone in (held[:ZONE], held[-ZONE:])]
        return sum(int((zone != SENTINEL).sum()) for zone in zones)

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """Within the block new tensors of floating point lie between zones."""
        originals = {name: getattr(torch, name) for name in MAKERS}

        def guarded(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def made(*sizes: Any, **options: Any) -> Tensor:
                fresh = make(*sizes, **options)
                return self.place(fresh) if fresh.is_floating_point() and not fresh.is_cuda else fresh

            return made

        try:
            for name, original in originals.items():
                setattr(torch, name, guarded(original))
            yield
        finally:
            for name, original in originals.items():
                setattr(torch, name, original)
