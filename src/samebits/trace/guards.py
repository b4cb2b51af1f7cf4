"""Memory between zones that nobody may write, filled with a pattern that no kernel computes.

A write outside of a buffer is seen in its zones; what nobody wrote still holds the pattern. Knows no kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

# Bytes of a zone: so many buffers of the size that it guards, within limits. A matrix of another width goes into it.
TIMES: Final = 8
LEAST: Final = 4096
MOST: Final = 1 << 20
ZONE_BYTE: Final = 0xA5
# Bits of a NaN that no operation gives from numbers, by the size of an element.
UNWRITTEN: Final = {2: 0x7FE5, 4: 0x7FEDFACE, 8: 0x7FFDFACEFACEFACE}
_WHOLE: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarded:
    """One buffer in its zones."""

    storage: StorageWeakRef
    """Which keeps nothing alive."""
    zone: int
    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    made_in: str

    @property
    def alive(self) -> bool:
        return not self.storage.expired()  # type: ignore[no-untyped-call]

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """What was written outside of a buffer."""

    buffer: Guarded
    before: int
    """Bytes changed in front of it."""
    behind: int
    reach: int
    """How many bytes from its nearer end the furthest of them is."""


class Guards:
    """All buffers that were placed and are still alive."""

    def __init__(self) -> None:
        self._known: dict[int, Guarded] = {}

    def placed(self, made: Tensor, made_in: str, *, written: bool) -> Tensor:
        """A tensor like `made`, a dense one, between zones; with its numbers where it was `written`."""
        size = made.numel() * made.element_size()
        # Zones keep the alignment that kernels expect of a fresh tensor.
        zone = -(-min(max(TIMES * size, LEAST), MOST) // 64) * 64
        whole = torch.full((zone + size + zone,), ZONE_BYTE, dtype=torch.uint8, device=made.device)
        inner = whole[zone : zone + size].view(made.dtype).as_strided(made.shape, made.stride(), zone // _size(made))
        if written:
            inner.copy_(made)
        elif made.is_floating_point() and size:
            _patterns(inner).fill_(_signed(UNWRITTEN[made.element_size()], made.element_size()))
        storage = whole.untyped_storage()
        self._known[storage.data_ptr()] = Guarded(
            storage=StorageWeakRef(storage),  # type: ignore[no-untyped-call]
            zone=zone,
            bytes=size,
            shape=tuple(made.shape),
            dtype=made.dtype,
            made_in=made_in,
        )
        return inner

    def damage(self, tensors: list[Tensor]) -> list[Damage]:
        """What was written beside the buffers of these tensors since this was last asked; the zones are mended."""
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
        found = []
        for address, storage in storages.items():
            buffer = self._known.get(address)
            if buffer is None or not buffer.alive:
                continue
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            front, back = whole[: buffer.zone], whole[buffer.zone + buffer.bytes :]
            wrong = [(zone != ZONE_BYTE).nonzero().view(-1) for zone in (front, back)]
            if any(len(each) for each in wrong):
                reach = max(
                    buffer.zone - int(wrong[0][0]) if len(wrong[0]) else 0,
                    int(wrong[1][-1]) + 1 if len(wrong[1]) else 0,
                )
                found.append(Damage(buffer=buffer, before=len(wrong[0]), behind=len(wrong[1]), reach=reach))
                front.fill_(ZONE_BYTE)
                back.fill_(ZONE_BYTE)
        return found

    def forget_the_dead(self) -> None:
        """Buffers that nobody holds any more."""
        self._known = {address: each for address, each in self._known.items() if each.alive}


def unwritten(tensor: Tensor) -> int:
    """Elements that hold the pattern of memory which nobody wrote."""
    if not tensor.is_floating_point() or tensor.element_size() not in UNWRITTEN:
        return 0
    pattern = _signed(UNWRITTEN[tensor.element_size()], tensor.element_size())
    return int((_patterns(tensor) == pattern).sum())


def _patterns(tensor: Tensor) -> Tensor:
    return tensor.view(_WHOLE[tensor.element_size()])


def _size(tensor: Tensor) -> int:
    return tensor.element_size()


def _signed(pattern: int, size: int) -> int:
    return pattern - (1 << 8 * size) if pattern >> (8 * size - 1) else pattern
