"""The gradient of the mean loss over all targets in float64 with torch's autograd, sequence by sequence."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from samebits.model.contracts.small_model import cut, joined
from samebits.train.contracts.gradflow.reference import logprobs64


def accumulated64(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """All gradients end to end, and the loss; the size of a pass has no say."""
    with torch.enable_grad():
        leaves = {name: each.detach().clone().requires_grad_() for name, each in cut(weights.double()).items()}
        total = torch.zeros((), dtype=torch.float64)
        for row, count in zip(text, counts.tolist(), strict=True):
            total = total - logprobs64(row[:count], row[1 : count + 1], leaves).sum()
        loss = total / int(counts.sum())
        found = torch.autograd.grad(loss, list(leaves.values()))
    return torch.cat([joined(dict(zip(leaves, found, strict=True))), loss.detach()[None]])


def counted64(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """Passes, clippings and updates of three cycles over all rows."""
    rows, cycles = len(text), 3
    size = max(each for each in range(1, rows + 1) if rows % each == 0 and each <= int(micro))
    return torch.tensor([cycles * (rows // size), cycles, cycles])


def mean_of64(losses: Tensor, count: Tensor) -> Tensor:
    """The exact mean of numbers, rounded once."""
    total = sum((Fraction(each) for each in losses.double().reshape(-1).tolist()), Fraction(0))
    return torch.tensor([float(total / int(count))], dtype=torch.float64)
