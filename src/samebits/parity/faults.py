"""Planted faults of the chain, one an operator at least: what kernels in the field do, and which promise it breaks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.nn.strategy import Operators, attention
from samebits.ops.accumulation import linear_into, rmsnorm_into, selected_logprob_into
from samebits.ops.rope import RopeScaling, rope
from samebits.ops.swiglu import swiglu

# Above so many rows a library picks another kernel.
MANY = 1000


def _rows(x: Tensor) -> int:
    return x.shape[:-1].numel()


def _norm_by_batch(x: Tensor, weight: Tensor, sums: Tensor, eps: float) -> Tensor:
    """Many rows: a row's elements meet in other lanes."""
    if _rows(x) <= MANY:
        return rmsnorm_into(x, weight, sums, eps)
    return rmsnorm_into(x.roll(1, -1), weight.roll(1, -1), sums, eps).roll(-1, -1)


def _linear_by_batch(x: Tensor, weight: Tensor, sums: Tensor) -> Tensor:
    """Many rows: the chain is split in two, and the halves are added."""
    if _rows(x) <= MANY:
        return linear_into(x, weight, sums)
    half = x.shape[-1] // 2
    aside = torch.zeros_like(sums)
    left = linear_into(x[..., :half].contiguous(), weight[:, :half].contiguous(), aside[:, :half].contiguous())
    return left + linear_into(x[..., half:].contiguous(), weight[:, half:].contiguous(), aside[:, half:].contiguous())


class _RoundedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sums: Tensor) -> Tensor:
        ctx.sums = sums
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        ctx.sums.copy_(ctx.sums.bfloat16())
        return dx, None


def _linear_rounds_its_sum(x: Tensor, weight: Tensor, sums: Tensor) -> Tensor:
    """The sum of gradients is kept in 16 bits between micro-batches."""
    return linear_into(_RoundedSums.apply(x, sums), weight, sums)  # type: ignore[no-untyped-call]


def _rope_from_the_padding(x: Tensor, positions: Tensor, theta: float, *, scaling: RopeScaling | None) -> Tensor:
    """Positions are counted from where memory starts, not from the sequence's first token."""
    if x.dim() == 4:
        positions = torch.arange(x.shape[-3], device=x.device).expand(positions.shape)
    return rope(x, positions, theta, scaling=scaling)


def _attention_by_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Many tokens: scores are scaled in the query instead of in the exponent."""
    if "cache" in options or q.shape[:-2].numel() <= MANY:
        return attention(q, k, v, **options)
    scale = q.shape[-1] ** -0.5
    return attention(q * scale, k, v, scale=1.0, **options)


def _decodes_otherwise(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """One query with a cache takes another path than a prompt does."""
    if "cache" in options and q.shape[1] == 1:
        scale = q.shape[-1] ** -0.5
        return attention(q * scale, k, v, scale=1.0, **options)
    return attention(q, k, v, **options)


def _chunks_otherwise(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """A chunk after the first is scaled elsewhere."""
    if "cache" in options and q.shape[1] > 1:
        scale = q.shape[-1] ** -0.5
        return attention(q * scale, k, v, scale=1.0, **options)
    return attention(q, k, v, **options)


def _swiglu_by_batch(gate: Tensor, up: Tensor) -> Tensor:
    """Many rows: torch's own sigmoid."""
    return swiglu(gate, up) if _rows(gate) <= MANY else gate * torch.sigmoid(gate) * up


def _logprob_by_batch(hidden: Tensor, weight: Tensor, ids: Tensor, sums: Tensor) -> Tensor:
    """Many rows: the vocabulary's blocks start one token later."""
    if _rows(hidden) <= MANY:
        return selected_logprob_into(hidden, weight, ids, sums)
    return selected_logprob_into(hidden, weight.roll(1, 0), (ids + 1) % len(weight), torch.zeros_like(sums))


_calls = [0]


def _never_the_same(x: Tensor, weight: Tensor, sums: Tensor, eps: float) -> Tensor:
    """As atomics do: every other call adds in another order."""
    _calls[0] += 1
    if _calls[0] % 2:
        return rmsnorm_into(x, weight, sums, eps)
    return rmsnorm_into(x.roll(1, -1), weight.roll(1, -1), sums, eps).roll(-1, -1)


FAULTS: dict[str, tuple[str, Operators]] = {
    "rmsnorm: other lanes for many rows": ("batch", Operators(rmsnorm=_norm_by_batch)),
    "matmul: split in two for many rows": ("batch", Operators(linear=_linear_by_batch)),
    "attention: scaled elsewhere for many tokens": ("batch", Operators(attention=_attention_by_batch)),
    "swiglu: another sigmoid for many rows": ("batch", Operators(swiglu=_swiglu_by_batch)),
    "logprob: blocks of the vocabulary shifted for many rows": ("batch", Operators(logprob=_logprob_by_batch)),
    "rope: positions counted from the padding": ("padding", Operators(rope=_rope_from_the_padding)),
    "attention: a chunk takes another path": ("chunk", Operators(attention=_chunks_otherwise)),
    "attention: decode takes another path": ("cache", Operators(attention=_decodes_otherwise)),
    "matmul: gradients rounded between micro-batches": ("micro", Operators(linear=_linear_rounds_its_sum)),
    "rmsnorm: another order every other call": ("repeat", Operators(rmsnorm=_never_the_same)),
}
"""What is wrong, the promise that must notice, and the chain with that operator replaced."""
