"""Planted faults of a forward pass: no positions, a sequence that sees another, a token that sees later ones."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits import ops
from samebits.model.contracts.model_forward import forward
from samebits.nn.strategy import Operators, attention, rmsnorm
from samebits.ops.accumulation import Sums


def _scaled_by_the_batch(x: Tensor, weight: Tensor, sums: Sums | None, eps: float) -> Tensor:
    """Correct but for the last bits, which depend on how many rows there are."""
    return rmsnorm(x, weight, sums, eps) * (1.0 + 2.0**-22 * (len(x) % 7))


def _over_all(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    """All tokens of the batch as one sequence."""
    return attention(q, k, v, cu_seqlens=torch.tensor([0, len(q)], device=q.device))


def _not_causal(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    return attention(q, k, v, **{**options, "causal": False})


def _not_turned(x: Tensor, positions: Tensor, *others: object, **options: object) -> Tensor:
    return ops.rope(x, torch.zeros_like(positions), *others, **options)  # type: ignore[arg-type]


def norm_knows_the_batch(ids: Tensor, weights: Tensor) -> Tensor:
    """A norm whose last bits depend on the number of rows."""
    return forward(ids, weights, operators=Operators(rmsnorm=_scaled_by_the_batch))


def sequences_are_one(ids: Tensor, weights: Tensor) -> Tensor:
    """A sequence sees those before it in the batch."""
    return forward(ids, weights, operators=Operators(attention=_over_all))


def without_a_mask(ids: Tensor, weights: Tensor) -> Tensor:
    """A token sees what comes after it."""
    return forward(ids, weights, operators=Operators(attention=_not_causal))


def without_positions(ids: Tensor, weights: Tensor) -> Tensor:
    """Queries and keys are not turned."""
    return forward(ids, weights, operators=Operators(rope=_not_turned))
