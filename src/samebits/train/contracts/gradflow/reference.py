"""Gradients in float64 by torch's own functions and autograd; no operator of ours is in them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from samebits.model.contracts.drawn_rounding import DRAWS, Exact
from samebits.model.contracts.model_forward.reference import EXACT, logits64, norm64
from samebits.model.contracts.small_model import cut, joined
from samebits.train.contracts.gradflow.rounding_back import DrawnThereAndBack


def gradients64(ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor, *, rounding: Exact = EXACT) -> Tensor:
    """The gradient of every weight, end to end."""
    with torch.enable_grad():
        leaves = {name: each.detach().clone().requires_grad_() for name, each in cut(weights.double()).items()}
        found = logprobs64(ids, targets, leaves, rounding)
        given = torch.autograd.grad(found, list(leaves.values()), upstream.double())
    return joined(dict(zip(leaves, given, strict=True)))


def effect64(arguments: dict[str, Tensor], exact: Tensor) -> Tensor:
    """How far rounding carried each gradient, the larger of some draws."""
    drawn = (gradients64(*arguments.values(), rounding=DrawnThereAndBack(seed)) for seed in range(DRAWS))
    return torch.stack([(each - exact).abs() for each in drawn]).amax(0)


def through_residual64(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """The norm of h = x + residual, and h itself beside it."""
    hidden = x + residual
    return torch.cat([norm64(hidden, weight), hidden], -1)


def logprobs64(ids: Tensor, targets: Tensor, weights: dict[str, Tensor], rounding: Exact = EXACT) -> Tensor:
    """The logprob of every target."""
    return log_softmax(logits64(ids, weights, rounding), -1).gather(-1, targets[:, None])[:, 0]
