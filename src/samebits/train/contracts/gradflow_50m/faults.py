"""Planted faults of the backward pass of 50 million weights: a norm that passes nothing back, a skip that is lost."""

from __future__ import annotations

from torch import Tensor

from samebits.nn.strategy import Operators
from samebits.ops.accumulation import Sums, rmsnorm_into
from samebits.train.contracts.gradflow_50m import gradients


def _norm_without_backward(x: Tensor, weight: Tensor, sums: Tensor, eps: float) -> Tensor:
    return rmsnorm_into(x.detach(), weight, sums, eps)


class _SkipLost(Operators):
    def joined_norm(
        self, x: Tensor, branch: Tensor, weight: Tensor, sums: Sums | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        return Operators.joined_norm(self, x.detach(), branch, weight, sums, eps)


def norm_without_backward(ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """Nothing flows back through a norm that stands alone, the first of the model."""
    return gradients(ids, targets, upstream, weights, operators=Operators(rmsnorm=_norm_without_backward))


def skip_lost(ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """The backward pass of a layer forgets the way past it."""
    return gradients(ids, targets, upstream, weights, operators=_SkipLost())
