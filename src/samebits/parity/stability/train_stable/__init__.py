"""A training loop at its smallest: the chain of operators, clipping and AdamW, with a log of what each step did.

Knows no data set and no schedule; the rate of every step is handed in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from samebits.ops.adamw import AdamW
from samebits.ops.grad_norm import clip_grad_norm_
from samebits.parity.stability.small_chain import chain_of, cut, weight_gradients

MAX_NORM = 1.0
LOGGED = ("loss", "norm before clipping", "norm after clipping", "largest weight")


def clipped(parameters: list[Tensor]) -> Tensor:
    """Clips as a training run does; the norm before."""
    return clip_grad_norm_(parameters, MAX_NORM)


def logged(values: Tensor) -> Tensor:
    """A line of the log: the numbers as they are."""
    return values


def training_log(
    hidden: Tensor,
    targets: Tensor,
    upstream: Tensor,
    weights: Tensor,
    rates: Tensor,
    *,
    clip: Callable[[list[Tensor]], Tensor] = clipped,
    log: Callable[[Tensor], Tensor] = logged,
) -> Tensor:
    """(steps, 4) float64: loss, norm before and after clipping, largest weight, of each step.

    The loss is the sum of `upstream` times the logprobs, so that its size is the caller's choice."""
    tensors = {name: tensor.detach().clone() for name, tensor in cut(weights).items()}
    parameters = list(tensors.values())
    optimizer = AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.1)
    lines = []
    for rate in rates.tolist():
        found, sums = weight_gradients(chain_of(tensors), hidden, targets, upstream)
        for name, tensor in tensors.items():
            tensor.grad = sums[name]
        before = clip(parameters)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        loss, largest = (found.double() * upstream.double()).sum(), _largest(parameters)
        lines.append(log(torch.stack([loss, before.double(), _norm64(list(sums.values())), largest])))
    return torch.stack(lines)


def _norm64(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt()


def _largest(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.abs().amax() for tensor in tensors]).amax().double()
