"""Weight gradients that go on: an operator whose weight gradient is resumed in a float32 sum instead of being returned.

One chain over the rows of a global batch, however it is cut into micro-batches. Adding gradients that were rounded or
summed apart would depend on the cut; here the sum of an earlier micro-batch is where the next one's chain starts. Rows
of one pass may have sums of their own, span by span: only the weight's gradient is then computed apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from samebits.ops.arguments import check_accumulator, choose_backend
from samebits.ops.embedding import embedding, embedding_gradient_
from samebits.ops.lm_head import lm_head
from samebits.ops.logprob import check_rows
from samebits.ops.matmul import linear, matmul
from samebits.ops.registering import call
from samebits.ops.rmsnorm import check_rmsnorm, rmsnorm_weight_gradient_


@dataclass(frozen=True, slots=True)
class Spans:
    """Sums of consecutive spans of rows: of those between each two cuts of the first axis that an operator is given."""

    parts: tuple[Tensor, ...]
    cuts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.cuts) != len(self.parts) + 1 or list(self.cuts) != sorted(self.cuts) or self.cuts[0] != 0:
            wanted = f"{len(self.parts) + 1} ascending places from 0"
            raise ValueError(f"sums: the cuts are {list(self.cuts)}; allowed: {wanted}")


Sums = Tensor | Spans
"""Where a weight's gradient goes on: one float32 sum over all rows, or one for each span of them."""


def resumed(sums: Sums, rows: int, first: int = 0, last: int | None = None) -> Iterator[tuple[Tensor, slice]]:
    """Each sum in which some of the rows from `first` to `last` go on, and which of them, counted from `first`."""
    last = rows if last is None else last
    if isinstance(sums, Tensor):
        yield sums, slice(0, last - first)
        return
    if sums.cuts[-1] != rows:
        raise ValueError(f"sums: their spans have {sums.cuts[-1]} rows, the pass {rows}; they must agree")
    for part, (start, end) in zip(sums.parts, pairwise(sums.cuts), strict=True):
        start, end = max(start, first), min(end, last)
        if start < end:
            yield part, slice(start - first, end - first)


def linear_into(x: Tensor, weight: Tensor, sums: Sums, *, backend: str | None = None) -> Tensor:
    """`linear`, with the weight's gradient added to sums (N, K) float32 in the backward pass."""
    _check_sums("linear_into", sums, weight, {"x": x, "weight": weight})
    y: Tensor = _Linear.apply(x, weight, sums, choose_backend("linear_into", x, backend))  # type: ignore[no-untyped-call]
    return y


def rmsnorm_into(x: Tensor, weight: Tensor, sums: Sums, eps: float = 1e-6, *, backend: str | None = None) -> Tensor:
    """`rmsnorm`, with the weight's gradient added to sums (H) float32 in the backward pass."""
    backend = choose_backend("rmsnorm_into", x, backend)
    check_rmsnorm("rmsnorm_into", x, weight, eps, None, backend)
    _check_sums("rmsnorm_into", sums, weight, {"x": x, "weight": weight})
    y: Tensor = _RMSNorm.apply(x, weight, sums, eps, backend)  # type: ignore[no-untyped-call]
    return y


def embedding_into(ids: Tensor, weight: Tensor, sums: Sums, *, backend: str | None = None) -> Tensor:
    """`embedding`, with the table's gradient added to sums (V, H) float32 in the backward pass."""
    _check_sums("embedding_into", sums, weight, {"weight": weight})
    y: Tensor = _Embedding.apply(ids, weight, sums, choose_backend("embedding_into", weight, backend))  # type: ignore[no-untyped-call]
    return y


def selected_logprob_into(
    hidden: Tensor, weight: Tensor, ids: Tensor, sums: Sums, *, backend: str | None = None
) -> Tensor:
    """`selected_logprob`, with the weight's gradient added to sums (V, K) float32 in the backward pass."""
    backend = choose_backend("selected_logprob_into", hidden, backend)
    _check_sums("selected_logprob_into", sums, weight, {"hidden": hidden, "weight": weight})
    y: Tensor = _Logprob.apply(hidden, weight, ids, sums, backend)  # type: ignore[no-untyped-call]
    return y


def lm_head_into(hidden: Tensor, weight: Tensor, sums: Sums, *, backend: str | None = None) -> Tensor:
    """`lm_head`, with the weight's gradient added to sums (V, K) float32 in the backward pass."""
    _check_sums("lm_head_into", sums, weight, {"hidden": hidden, "weight": weight})
    y: Tensor = _Head.apply(hidden, weight, sums, choose_backend("lm_head_into", hidden, backend))  # type: ignore[no-untyped-call]
    return y


def _check_sums(operator: str, sums: Sums, weight: Tensor, inputs: dict[str, Tensor]) -> None:
    for part in (sums,) if isinstance(sums, Tensor) else sums.parts:
        check_accumulator(operator, part, tuple(weight.shape), inputs)


# Rows with this target have no logprob and no gradient, as in torch.
IGNORED = -100


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sums: Sums, backend: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sums, ctx.backend = sums, backend
        return linear(x, weight, backend=backend)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy_MN, x_MK = dy.reshape(-1, weight.shape[0]), x.reshape(-1, weight.shape[1])
        for part, rows in resumed(ctx.sums, len(x_MK)):
            # Without its spec: the sums were checked on the way forward, and there are many of them.
            torch.ops.samebits.gemm_accumulate_(part, dy_MN[rows].T, x_MK[rows], ctx.backend)
        return matmul(dy_MN, weight, backend=ctx.backend).reshape(x.shape), None, None, None


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, sums: Sums, backend: str) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.sums, ctx.backend = sums, backend
        return lm_head(hidden, weight, backend=backend)

    @staticmethod
    def backward(ctx: Any, dlogits_MV: Tensor) -> tuple[Tensor | None, ...]:
        """As `lm_head` has it: what flows back is rounded to the dtype of hidden, then enters the two products."""
        hidden_MK, weight = ctx.saved_tensors
        rounded_MV = dlogits_MV.to(hidden_MK.dtype)
        for part, rows in resumed(ctx.sums, len(hidden_MK)):
            torch.ops.samebits.gemm_accumulate_(part, rounded_MV[rows].T, hidden_MK[rows], ctx.backend)
        return matmul(rounded_MV, weight, backend=ctx.backend), None, None, None


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sums: Sums, eps: float, backend: str) -> Tensor:
        y_MH, statistic_M = call("rmsnorm", x.reshape(-1, x.shape[-1]), weight, eps, backend)
        ctx.save_for_backward(x, weight, statistic_M.reshape(x.shape[:-1]))
        ctx.sums, ctx.backend = sums, backend
        return y_MH.reshape(x.shape)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, statistic = ctx.saved_tensors
        for part, span in resumed(ctx.sums, len(x)):
            rmsnorm_weight_gradient_(part, dy[span], x[span], statistic[span], backend=ctx.backend)
        width = x.shape[-1]
        rows = (dy.reshape(-1, width), x.reshape(-1, width))
        dx = call("rmsnorm_dx", *rows, weight, statistic.reshape(-1), None, ctx.backend)
        return dx.reshape(x.shape), None, None, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, sums: Sums, backend: str) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.sums, ctx.backend = sums, backend
        return embedding(ids, weight, backend=backend)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        for part, rows in resumed(ctx.sums, len(ids)):
            embedding_gradient_(part, ids[rows], dy[rows], backend=ctx.backend)
        return None, None, None, None


class _Logprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, sums: Sums, backend: str) -> Tensor:
        hidden_MK, ids_M, _ = check_rows("selected_logprob_into", hidden, weight, "ids", ids, backend)
        logprob_M, lse_M = call("selected_logprob", hidden_MK, weight, ids_M, IGNORED, backend)
        ctx.save_for_backward(hidden, weight, ids_M, lse_M)
        ctx.sums, ctx.backend = sums, backend
        return logprob_M.reshape(ids.shape)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dlogprob: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, ids_M, lse_M = ctx.saved_tensors
        hidden_MK = hidden.reshape(-1, hidden.shape[-1])
        dlogprob_M = dlogprob.reshape(-1)
        found = [
            torch.ops.samebits.selected_logprob_gradients_(
                part, dlogprob_M[rows], hidden_MK[rows], weight, ids_M[rows], lse_M[rows], IGNORED, True, ctx.backend
            )
            for part, rows in resumed(ctx.sums, len(hidden_MK))
        ]
        dhidden_MK = found[0] if len(found) == 1 else torch.cat(found)
        return dhidden_MK.reshape(hidden.shape), None, None, None, None
