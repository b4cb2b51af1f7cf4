"""Weight gradients that go on: an operator whose weight gradient is resumed in a float32 sum instead of being returned.

One chain over the rows of a global batch, however it is cut into micro-batches. Adding gradients that were rounded or
summed apart would depend on the cut; here the sum of an earlier micro-batch is where the next one's chain starts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.ops.arguments import choose_backend
from samebits.ops.embedding import embedding, embedding_gradient_
from samebits.ops.logprob import check_rows
from samebits.ops.matmul import linear, matmul, matmul_accumulate_
from samebits.ops.registering import call
from samebits.ops.rmsnorm import rmsnorm, rmsnorm_statistic, rmsnorm_weight_gradient_


def linear_into(x: Tensor, weight: Tensor, sums: Tensor, *, backend: str | None = None) -> Tensor:
    """`linear`, with the weight's gradient added to sums (N, K) float32 in the backward pass."""
    y: Tensor = _Linear.apply(x, weight, sums, choose_backend("linear_into", x, backend))  # type: ignore[no-untyped-call]
    return y


def rmsnorm_into(x: Tensor, weight: Tensor, sums: Tensor, eps: float = 1e-6, *, backend: str | None = None) -> Tensor:
    """`rmsnorm`, with the weight's gradient added to sums (H) float32 in the backward pass."""
    y: Tensor = _RMSNorm.apply(x, weight, sums, eps, choose_backend("rmsnorm_into", x, backend))  # type: ignore[no-untyped-call]
    return y


def embedding_into(ids: Tensor, weight: Tensor, sums: Tensor, *, backend: str | None = None) -> Tensor:
    """`embedding`, with the table's gradient added to sums (V, H) float32 in the backward pass."""
    y: Tensor = _Embedding.apply(ids, weight, sums, choose_backend("embedding_into", weight, backend))  # type: ignore[no-untyped-call]
    return y


def selected_logprob_into(
    hidden: Tensor, weight: Tensor, ids: Tensor, sums: Tensor, *, backend: str | None = None
) -> Tensor:
    """`selected_logprob`, with the weight's gradient added to sums (V, K) float32 in the backward pass."""
    backend = choose_backend("selected_logprob_into", hidden, backend)
    y: Tensor = _Logprob.apply(hidden, weight, ids, sums, backend)  # type: ignore[no-untyped-call]
    return y


# Rows with this target have no logprob and no gradient, as in torch.
IGNORED = -100


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sums: Tensor, backend: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sums, ctx.backend = sums, backend
        return linear(x, weight, backend=backend)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy_MN, x_MK = dy.reshape(-1, weight.shape[0]), x.reshape(-1, weight.shape[1])
        matmul_accumulate_(ctx.sums, dy_MN.T, x_MK, backend=ctx.backend)
        return matmul(dy_MN, weight, backend=ctx.backend).reshape(x.shape), None, None, None


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sums: Tensor, eps: float, backend: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sums, ctx.eps, ctx.backend = sums, eps, backend
        y = rmsnorm(x, weight, eps, backend=backend)
        assert isinstance(y, Tensor)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        statistic = rmsnorm_statistic(x, weight, ctx.eps, backend=ctx.backend)
        rmsnorm_weight_gradient_(ctx.sums, dy, x, statistic, backend=ctx.backend)
        width = x.shape[-1]
        rows = (dy.reshape(-1, width), x.reshape(-1, width))
        dx = call("rmsnorm_dx", *rows, weight, statistic.reshape(-1), None, ctx.backend)
        return dx.reshape(x.shape), None, None, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, sums: Tensor, backend: str) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.sums, ctx.backend = sums, backend
        return embedding(ids, weight, backend=backend)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        embedding_gradient_(ctx.sums, ids, dy, backend=ctx.backend)
        return None, None, None, None


class _Logprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, sums: Tensor, backend: str) -> Tensor:
        hidden_MK, ids_M, _ = check_rows("selected_logprob_into", hidden, weight, "ids", ids, backend)
        logprob_M, lse_M = call("selected_logprob", hidden_MK, weight, ids_M, IGNORED, backend)
        ctx.save_for_backward(hidden, weight, ids_M, lse_M)
        ctx.sums, ctx.backend = sums, backend
        return logprob_M.reshape(ids.shape)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dlogprob: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, ids_M, lse_M = ctx.saved_tensors
        hidden_MK = hidden.reshape(-1, hidden.shape[-1])
        dhidden_MK = torch.ops.samebits.selected_logprob_gradients_(
            ctx.sums, dlogprob.reshape(-1), hidden_MK, weight, ids_M, lse_M, IGNORED, True, ctx.backend
        )
        return dhidden_MK.reshape(hidden.shape), None, None, None, None
