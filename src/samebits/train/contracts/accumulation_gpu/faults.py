"""Planted faults of sums on a device: a buffer that is not cleared, a look at every pass."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.model import Batch, Model
from samebits.train import lanes
from samebits.train.contracts.accumulation_gpu import summed


def not_cleared(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """On a device the sums still hold a cycle over the same rows when a pass adds its own."""
    share = 1.0 / int(counts.sum())

    def losses(model: Model, batch: Batch, targets: Tensor) -> Tensor:
        left = lanes.minus_logprobs(model, batch, targets)
        if not left.is_cuda:
            return left
        torch.autograd.backward(left, torch.full_like(left, share))
        return lanes.minus_logprobs(model, batch, targets)

    return summed(text, counts, weights, micro, losses=losses)


def _looked_at(model: Model, batch: Batch, targets: Tensor) -> Tensor:
    found = lanes.minus_logprobs(model, batch, targets)
    found.detach().cpu()
    return found


def every_pass_downloaded(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """The losses of each pass are copied to the host before the next begins."""
    return summed(text, counts, weights, micro, losses=_looked_at)
