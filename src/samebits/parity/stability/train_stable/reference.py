"""The same loop in float64 with torch's own functions: the log that a run without rounding would write."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.parity.stability.gradflow.reference import gradients64, logprobs64
from samebits.parity.stability.train_stable import MAX_NORM


def training_log64(hidden: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor, rates: Tensor) -> Tensor:
    """(steps, 4): loss, norm before and after clipping, largest weight, of each step."""
    parameter = weights.double()
    first, second, lines = torch.zeros_like(parameter), torch.zeros_like(parameter), []
    for step, rate in enumerate(rates.tolist(), 1):
        loss = (logprobs64(hidden, targets, parameter) * upstream.double()).sum()
        gradient = gradients64(hidden, targets, upstream, parameter)
        norm = gradient.norm()
        gradient = gradient * (MAX_NORM / (norm + 1e-6)).clamp(max=1.0)
        first = 0.9 * first + 0.1 * gradient
        second = 0.95 * second + 0.05 * gradient.square()
        share = first / (1 - 0.9**step) / ((second / (1 - 0.95**step)).sqrt() + 1e-8)
        parameter = parameter * (1 - rate * 0.1) - rate * share
        lines.append(torch.stack([loss, norm, gradient.norm(), parameter.abs().amax()]))
    return torch.stack(lines)
