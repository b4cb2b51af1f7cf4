"""RMSNorm of heads that lie on several ranks: each rank its own, the weight's gradient over all heads as on one rank.

The weight is one for all heads, and its gradient is a chain over tokens and, within each, heads: so the rows of all
ranks are brought together for it. Norms of whole hidden rows need nothing of the kind: every rank has all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from samebits.ops.accumulation import Sums, resumed
from samebits.ops.registering import call
from samebits.ops.rmsnorm import rmsnorm, rmsnorm_statistic, rmsnorm_weight_gradient_
from samebits.parallel.collectives import gather_columns
from samebits.parallel.world import Group

HEADS: Final = "gather heads"


def head_norms(
    heads: Sequence[Tensor],
    weights: Sequence[Tensor],
    sums: Sequence[Sums],
    counts: Sequence[Sequence[int]],
    eps: float,
    group: Group,
    backend: str,
) -> list[Tensor]:
    """`rmsnorm` of each (T, heads of this rank, size) with its weight (size), whose gradient goes on in its sum.

    `counts`: of each, how many heads every rank has. One function for all, so that ranks exchange in one order."""
    arguments = (tuple(weights), tuple(sums), tuple(counts), eps, group, backend)
    return list(_HeadNorms.apply(arguments, *heads))  # type: ignore[no-untyped-call]


class _HeadNorms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, arguments: tuple[Any, ...], *heads: Tensor) -> tuple[Tensor, ...]:
        weights, ctx.sums, ctx.counts, ctx.eps, ctx.group, ctx.backend = arguments
        ctx.save_for_backward(*heads, *weights)
        return tuple(_normed(x, weight, ctx.eps, ctx.backend) for x, weight in zip(heads, weights, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        half = len(ctx.saved_tensors) // 2
        heads, weights = ctx.saved_tensors[:half], ctx.saved_tensors[half:]
        found = []
        for x, weight, dy, total, counts in zip(heads, weights, gradients, ctx.sums, ctx.counts, strict=True):
            tokens, _, size = x.shape
            widths = [count * size for count in counts]
            all_x, all_dy = (
                gather_columns(ctx.group, each.reshape(tokens, -1), widths, HEADS).view(tokens, -1, size)
                for each in (x, dy)
            )
            statistic = rmsnorm_statistic(all_x, weight, ctx.eps, backend=ctx.backend)
            for part, span in resumed(total, tokens):
                rmsnorm_weight_gradient_(part, all_dy[span], all_x[span], statistic[span], backend=ctx.backend)
            found.append(_input_gradient(x, dy, weight, ctx.eps, ctx.backend))
        return None, *found


def _normed(x: Tensor, weight: Tensor, eps: float, backend: str) -> Tensor:
    if not x.numel():
        return x.clone()
    normed = rmsnorm(x, weight, eps, backend=backend)
    assert isinstance(normed, Tensor)
    return normed


def _input_gradient(x: Tensor, dy: Tensor, weight: Tensor, eps: float, backend: str) -> Tensor:
    if not x.numel():
        return torch.zeros_like(x)
    size = x.shape[-1]
    statistic = rmsnorm_statistic(x, weight, eps, backend=backend)
    rows = (dy.reshape(-1, size), x.reshape(-1, size))
    dx: Tensor = call("rmsnorm_dx", *rows, weight, statistic.reshape(-1), None, backend)
    return dx.reshape(x.shape)
