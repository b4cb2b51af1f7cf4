"""What moves between host and device, and where the host waits: counted, with the line that did it, against a budget.

Sees every operation of torch in its thread while the block lasts. Knows no model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from samebits.trace.spans import event

_aten = torch.ops.aten
# The host reads a number: it waits for whatever computes it.
_READS: Final = (_aten._local_scalar_dense.default, _aten.is_nonzero.default, _aten.nonzero.default)
_TORCH: Final = str(Path(torch.__file__).parent)
_HERE: Final = str(Path(__file__).parent)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One copy between devices, or one wait."""

    kind: str
    """"to device", "to host", "between devices" or "wait"."""
    bytes: int
    where: str
    """file:line of the caller outside torch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a piece of work may move; None: any number."""

    to_device: int | None = None
    to_host: int | None = None
    waits: int | None = None
    bytes: int | None = None


@dataclass(slots=True)
class Transfers:
    """What was seen."""

    seen: list[Transfer] = field(default_factory=list)

    def count(self, kind: str) -> int:
        return sum(each.kind == kind for each in self.seen)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.seen)

    def findings(self, budget: Budget) -> list[str]:
        """One line for each part of the budget that was passed, with the first place that went beyond."""
        found = []
        for kind, most in (("to device", budget.to_device), ("to host", budget.to_host), ("wait", budget.waits)):
            of_kind = [each for each in self.seen if each.kind == kind]
            if most is not None and len(of_kind) > most:
                beyond = of_kind[most].where
                found.append(f"transfer {kind}: {len(of_kind)} times, first too many at {beyond}; allowed: {most}")
        if budget.bytes is not None and self.bytes > budget.bytes:
            largest = max(self.seen, key=lambda each: each.bytes)
            found.append(f"transfer: {self.bytes} bytes, most of them at {largest.where}; allowed: {budget.bytes}")
        return found


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: Transfers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each for each in tree_leaves((args, kwargs or {})) if isinstance(each, Tensor)]
        result = function(*args, **(kwargs or {}))
        if function in _READS and any(each.is_cuda for each in given):
            self._tell("wait", 0)
        elif given and isinstance(result, Tensor):
            source = given[-1] if function is _aten.copy_.default else given[0]
            if source.device.type != result.device.type:
                kind = "to device" if result.is_cuda else "to host"
                self._tell(kind, source.numel() * source.element_size())
            elif source.device != result.device:
                self._tell("between devices", source.numel() * source.element_size())
        return result

    def _tell(self, kind: str, size: int) -> None:
        self._found.seen.append(Transfer(kind=kind, bytes=size, where=caller()))
        event("transfer", kind=kind, bytes=size, where=self._found.seen[-1].where)


@contextmanager
def transfers() -> Iterator[Transfers]:
    """Within the block every copy between devices and every wait of the host is counted."""
    found = Transfers()
    with _Watching(found):
        yield found


def caller() -> str:
    """file:line of what asked torch for the operation that is under way."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _HERE)):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
