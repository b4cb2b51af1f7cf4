"""What tests of layers over ranks share: data, pieces of it, and equality of bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from samebits.parallel.world import Group


def drawn(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    """Bell-shaped numbers, the same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def wanted(tensor: Tensor) -> Tensor:
    """A leaf of its own that wants a gradient."""
    return tensor.detach().clone().requires_grad_()


def own(tensor: Tensor, cuts: Sequence[int], group: Group, axis: int = 0) -> Tensor:
    """This rank's piece of an axis, a leaf of its own that wants a gradient if the whole does."""
    start, end = cuts[group.place], cuts[group.place + 1]
    return tensor.narrow(axis, start, end - start).detach().clone().requires_grad_(tensor.requires_grad)


def same(left: Tensor | None, right: Tensor | None) -> bool:
    """Bits, dtype and shape; +0 is not -0, and NaN meets NaN."""
    if left is None or right is None or (left.shape, left.dtype) != (right.shape, right.dtype):
        return False
    kind = torch.int32 if left.dtype == torch.float32 else torch.int16
    left, right = (each.detach().clone().masked_fill_(each.isnan(), torch.nan).contiguous() for each in (left, right))
    return torch.equal(left.view(kind), right.view(kind))


def differing(pairs: Mapping[str, tuple[Tensor | None, Tensor | None]]) -> list[str]:
    """The names under which the two are not the same."""
    return [name for name, (left, right) in pairs.items() if not same(left, right)]


def chain_bytes(group: Group, rows: int, width: int, dtype: torch.dtype, chains: int = 1) -> int:
    """What a rank sends for travelling chains: float32 sums towards the last rank, their finished sum back."""
    forth, back = group.place < group.size - 1, group.place > 0
    return rows * width * (4 * chains * forth + dtype.itemsize * back)
