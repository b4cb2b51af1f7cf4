"""Keeps what a function handed out in its last calls, and tells what has other bits by now.

A function may take turns with several buffers: what it gave is its caller's for longer than until the next call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

MOST_CALLS = 8
MOST_BYTES = 1 << 22
"""Of all calls but the last."""


@dataclass(slots=True)
class Held:
    """Results by name, call by call, each with its bits when it was handed out."""

    read: Callable[[Tensor], bytes]
    calls: list[list[tuple[str, Tensor, bytes]]] = field(default_factory=list)

    def overwritten(self) -> str:
        """The name of the first result whose bits are not what they were, or ""."""
        for call in self.calls:
            for name, tensor, bits in call:
                if self.read(tensor) != bits:
                    return name
        return ""

    def keep(self, results: Mapping[str, Tensor]) -> None:
        """Keeps one call's results; the oldest go where they are too many or too large."""
        self.calls.append([(name, each.detach(), self.read(each)) for name, each in results.items()])
        while len(self.calls) > MOST_CALLS or (len(self.calls) > 1 and self._bytes() > MOST_BYTES):
            del self.calls[0]

    def _bytes(self) -> int:
        return sum(len(bits) for call in self.calls for _, _, bits in call)
