"""Planted faults of pruning: one too many, the order turned round, inputs ignored, scaled up, nothing left out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.post.contracts.pruning import pruned_model
from samebits.post.pruning import Job
from samebits.post.sparsity import pruned


def one_too_many(weight: Tensor, squares: Tensor, share: Tensor) -> Tensor:
    """Everything up to the score at the share goes, that one too."""
    count = min(weight.shape[1], math.floor(float(share[0]) * weight.shape[1]) + 1)
    return pruned(weight, sparsity=count / weight.shape[1], squares=squares)


def largest_go(weight: Tensor, squares: Tensor, share: Tensor) -> Tensor:
    """The largest scores are taken for the least."""
    gone = pruned(weight, sparsity=1.0 - float(share[0]), squares=squares)
    return torch.where(gone == 0, weight, torch.zeros_like(weight))


def inputs_ignored(weight: Tensor, squares: Tensor, share: Tensor) -> Tensor:
    """Magnitude alone, row by row."""
    return pruned(weight, sparsity=float(share[0]), squares=torch.ones_like(squares))


def scaled_up(weight: Tensor, squares: Tensor, share: Tensor) -> Tensor:
    """What is kept makes up for what went."""
    found = pruned(weight, sparsity=float(share[0]), squares=squares)
    return found * 2.0


class _EveryMatrix(Job):
    def thinned(self, name: str) -> bool:
        return self.loaded.model.weights[name].dim() == 2


def nothing_excluded(weights: Tensor, share: Tensor) -> Tensor:
    """Embedding and head are pruned like any matrix."""
    return pruned_model(weights, share, kind=_EveryMatrix)
