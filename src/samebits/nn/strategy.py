"""How the forward pass computes: a function for each place in it, as a set that is handed to the model.

The model says which weights meet which rows; the set says how. This one runs our operators, with weight gradients that
go on in sums where there are some; split.py has the one for ranks, parity/stock.py the one of torch's own functions.
Each function is given the sum of its weight's gradient, or None where none is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from samebits import ops
from samebits.ops.accumulation import (
    Sums,
    embedding_into,
    linear_into,
    lm_head_into,
    rmsnorm_into,
    selected_logprob_into,
)


def embedding(ids: Tensor, weight: Tensor, sums: Sums | None) -> Tensor:
    return ops.embedding(ids, weight) if sums is None else embedding_into(ids, weight, sums)


def rmsnorm(x: Tensor, weight: Tensor, sums: Sums | None, eps: float) -> Tensor:
    if sums is not None:
        return rmsnorm_into(x, weight, sums, eps)
    normed = ops.rmsnorm(x, weight, eps)
    assert isinstance(normed, Tensor)
    return normed


def linear(x: Tensor, weight: Tensor, sums: Sums | None) -> Tensor:
    return ops.linear(x, weight) if sums is None else linear_into(x, weight, sums)


def attention(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    out = ops.attention(q, k, v, **options)  # type: ignore[arg-type]
    assert isinstance(out, Tensor)
    return out


def logprob(hidden: Tensor, weight: Tensor, ids: Tensor, sums: Sums | None) -> Tensor:
    if sums is None:
        return ops.selected_logprob(hidden, weight, ids)
    return selected_logprob_into(hidden, weight, ids, sums)


@dataclass(frozen=True, kw_only=True, slots=True)
class Operators:
    """Any function may be replaced by another one, for a comparison or by a faulty one; the methods use them."""

    embedding: Callable[..., Tensor] = embedding
    rmsnorm: Callable[..., Tensor] = rmsnorm
    linear: Callable[..., Tensor] = linear
    rope: Callable[..., Tensor] = ops.rope
    attention: Callable[..., Tensor] = attention
    swiglu: Callable[..., Tensor] = ops.swiglu
    lm_head: Callable[..., Tensor] = ops.lm_head
    logprob: Callable[..., Tensor] = logprob
    logprob_of_logits: Callable[..., Tensor] = ops.logprob_of_logits

    def embed(self, ids: Tensor, weight: Tensor, sums: Sums | None) -> Tensor:
        return self.embedding(ids, weight, sums)

    def outward(self, x: Tensor, weights: Sequence[Tensor], sums: Sequence[Sums | None]) -> Sequence[Tensor]:
        """x with each of the weights that read it."""
        return [self.linear(x, weight, each) for weight, each in zip(weights, sums, strict=True)]

    def inward(self, x: Tensor, weight: Tensor, sums: Sums | None, name: str) -> Tensor:
        """x with a weight that writes into the residual stream."""
        return self.linear(x, weight, sums)

    def joined_norm(
        self, x: Tensor, branch: Tensor, weight: Tensor, sums: Sums | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(h, norm of h), h = round(x + branch). One kernel where nothing flows back: behind a fused one, gradients
        would be rounded elsewhere."""
        if self.rmsnorm is rmsnorm and sums is None and not torch.is_grad_enabled():
            normed, stream = ops.add_rmsnorm(x, branch, weight, eps)
            return stream, normed
        stream = x + branch
        return stream, self.rmsnorm(stream, weight, sums, eps)

    def head_norms(
        self, q: Tensor, k: Tensor, weights: Sequence[Tensor], sums: Sequence[Sums | None], eps: float
    ) -> Sequence[Tensor]:
        """Queries and keys, each head normed; a rank may have none."""
        given = zip((q, k), weights, sums, strict=True)
        return [self.rmsnorm(heads, weight, each, eps) if heads.numel() else heads for heads, weight, each in given]

    def logits(self, hidden: Tensor, weight: Tensor, sums: Sums | None) -> Tensor:
        return self.lm_head(hidden, weight) if sums is None else lm_head_into(hidden, weight, sums)

    def logprobs(self, hidden: Tensor, weight: Tensor, ids: Tensor, sums: Sums | None) -> Tensor:
        return self.logprob(hidden, weight, ids, sums)


OURS: Final = Operators()
