"""Three matrix products as a user might write them, for `samebits check examples/my_kernel.py:good --like matmul`.

All are right within rounding; the first two keep every promise that one function can show, each in its own order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _chain(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """One product at a time, k ascending, in float32."""
    total_MN = torch.zeros(a_MK.shape[0], b_KN.shape[1], device=a_MK.device)
    for k in range(a_MK.shape[1]):
        total_MN = total_MN + a_MK[:, k, None].float() * b_KN[k].float()
    return total_MN.to(a_MK.dtype)


def _kahan(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """The same walk, with what each addition loses carried along: more accurate, and no plain order of additions."""
    total_MN = torch.zeros(a_MK.shape[0], b_KN.shape[1], device=a_MK.device)
    lost_MN = torch.zeros_like(total_MN)
    for k in range(a_MK.shape[1]):
        term_MN = a_MK[:, k, None].float() * b_KN[k].float() - lost_MN
        next_MN = total_MN + term_MN
        lost_MN = (next_MN - total_MN) - term_MN
        total_MN = next_MN
    return total_MN.to(a_MK.dtype)


def _split_by_batch(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """Few rows leave cores idle, so the sum is cut in two for them: the classic way to lose batch invariance."""
    half = a_MK.shape[1] // 2
    if a_MK.shape[0] > 4 or half == 0:
        return _chain(a_MK, b_KN)
    return _chain(a_MK[:, :half], b_KN[:half]) + _chain(a_MK[:, half:], b_KN[half:])


class _Product(torch.autograd.Function):
    """A product whose gradients are products of the same kind."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.product = product
        return product(a, b)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        return ctx.product(dy, b.T), ctx.product(a.T, dy), None


def good(a: Tensor, b: Tensor) -> Tensor:
    """Keeps its bits: every element is one chain, whatever stands beside it."""
    return _Product.apply(a, b, _chain)


def kahan(a: Tensor, b: Tensor) -> Tensor:
    """Keeps its bits too: it has one order for all rows, though no order of plain additions replays it."""
    return _Product.apply(a, b, _kahan)


def split_by_batch(a: Tensor, b: Tensor) -> Tensor:
    """Loses its bits: up to four rows are added in another order than five."""
    return _Product.apply(a, b, _split_by_batch)
