"""The same loop in float64 with torch's own functions: the log that a run without rounding would write."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.model.contracts.small_model import cut, joined
from samebits.train.contracts.gradflow.reference import gradients64, logprobs64
from samebits.train.contracts.train_stable import MAX_NORM


def training_log64(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """(steps, 4): loss, norm before and after clipping, largest weight, of each step."""
    ids, targets, parameter = text[:-1], text[1:], weights.double()
    upstream = torch.full((len(ids),), -1.0 / len(ids), dtype=torch.float64, device=weights.device)
    # Norms do not decay.
    decay = joined({name: torch.full_like(each, 0.1 * (each.dim() > 1)) for name, each in cut(parameter).items()})
    first, second, lines = torch.zeros_like(parameter), torch.zeros_like(parameter), []
    for step in range(1, int(steps) + 1):
        loss = (logprobs64(ids, targets, cut(parameter)) * upstream).sum()
        gradient = gradients64(ids, targets, upstream, parameter)
        norm = gradient.norm()
        gradient = gradient * (MAX_NORM / (norm + 1e-6)).clamp(max=1.0)
        first = 0.9 * first + 0.1 * gradient
        second = 0.95 * second + 0.05 * gradient.square()
        share = first / (1 - 0.9**step) / ((second / (1 - 0.95**step)).sqrt() + 1e-8)
        now = rate_at(step, float(rate), int(steps))
        parameter = parameter * (1 - now * decay) - now * share
        lines.append(torch.stack([loss, norm, gradient.norm(), parameter.abs().amax()]))
    return torch.stack(lines)


def rate_at(step: int, peak: float, steps: int) -> float:
    """The peak at the first step, then down a half cosine to a tenth of it."""
    share = 1.0 if step == 1 else (1 + math.cos(math.pi * (step - 1) / (steps - 1))) / 2
    return peak * (0.1 + 0.9 * share)
