"""Planted faults of a run on a device: a copy for debugging, weights left behind, the CPU without a word."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.model import Model
from samebits.train import lanes
from samebits.train.contracts.training_gpu import HOST, brought_back, copies, device_used, losses
from samebits.train.trainer import Parts


def _copied(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
    found = lanes.backward(model, examples, cut)
    next(iter(found.gradients.values())).cpu()
    return found


def debugging_copy(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """One gradient is looked at in every step."""
    return copies(text, weights, rate, steps, parts=Parts(backward=_copied))


def weights_left_behind(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """The checkpoint holds what the host had when the run began."""
    began, device, _ = brought_back(text, weights, rate, steps)
    return torch.stack([began, device, began])


def nothing_learned(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """What the steps computed is thrown away."""
    return brought_back(text, weights, rate, steps)[:1].expand(3, -1)


def loss_of_the_start(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """On a device every step begins with the weights that the host still has."""
    if not weights.is_cuda:
        return losses(text, weights, rate, steps)
    return losses(text, weights, rate, torch.ones_like(steps)).expand(int(steps))


def halved_loss(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    return losses(text, weights, rate, steps) / 2


def cpu_instead(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, device: Tensor) -> Tensor:
    """Where there is no such device the run goes on without a word."""
    try:
        return device_used(text, weights, rate, steps, device)
    except ValueError:
        return device_used(text, weights, rate, steps, torch.full_like(device, HOST))
