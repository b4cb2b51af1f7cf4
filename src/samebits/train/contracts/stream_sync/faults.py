"""Planted faults of reads: a number is taken before the stream that writes it was waited for, or another was."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from samebits.model import Model
from samebits.train import lanes
from samebits.train.contracts.stream_sync import late_log
from samebits.train.trainer import Parts


def _on_its_way(found: lanes.Backward) -> tuple[Tensor, Tensor]:
    """The loss on the device, and memory of the host that it can be copied to without a wait."""
    device = next(iter(found.gradients.values())).device
    host = torch.zeros(1, dtype=torch.float64).pin_memory()
    return torch.full((), found.loss, dtype=torch.float64, device=device), host


def _not_waited_for(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
    found = lanes.backward(model, examples, cut)
    loss, host = _on_its_way(found)
    host.copy_(loss, non_blocking=True)
    return replace(found, loss=float(host))


def _another_waited_for(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
    found = lanes.backward(model, examples, cut)
    loss, host = _on_its_way(found)
    other = torch.cuda.Stream(loss.device)  # type: ignore[no-untyped-call]
    host.copy_(loss, non_blocking=True)
    other.synchronize()
    return replace(found, loss=float(host))


def without_waiting(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, cycles: Tensor) -> Tensor:
    """The loss is read while its copy is on the way."""
    return late_log(text, weights, rate, steps, cycles, parts=Parts(backward=_not_waited_for))


def another_stream(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, cycles: Tensor) -> Tensor:
    """A stream is waited for that has nothing to do."""
    return late_log(text, weights, rate, steps, cycles, parts=Parts(backward=_another_waited_for))
