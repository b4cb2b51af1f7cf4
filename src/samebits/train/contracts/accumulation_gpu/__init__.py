"""Gradients of a global batch in passes, summed on the device of the weights, and what comes back meanwhile.

Rows of text are sequences, each with its own number of targets. Knows no kernel."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from samebits.model.contracts.small_model import joined, model_of
from samebits.trace.transfers import Transfers, transfers
from samebits.train import lanes
from samebits.train.contracts.gradient_accumulation import cut_of, examples_of

BACK: Final = ("to host", "wait")
"""What comes back: copies, and numbers that the host waits for."""


def _gone_through(
    text: Tensor, counts: Tensor, weights: Tensor, micro: int, losses: lanes.Losses
) -> tuple[lanes.Backward, Transfers]:
    model, examples = model_of(weights), examples_of(text.cpu(), counts.cpu())
    with transfers() as seen:
        found = lanes.backward_of(losses, model, examples, cut_of(len(text), micro))
    return found, seen


def summed(
    text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor, *, losses: lanes.Losses = lanes.minus_logprobs
) -> Tensor:
    """float64 on the host: all gradients end to end, the loss, and how often something came back in passes of `micro`
    rows, and in a single pass over all of them. `losses` is where faults are planted."""
    found, in_passes = _gone_through(text, counts, weights, int(micro), losses)
    _, in_one = _gone_through(text, counts, weights, len(text), losses)
    back = [sum(seen.count(kind) for kind in BACK) for seen in (in_passes, in_one)]
    return torch.cat([joined(found.gradients).double().cpu(), torch.tensor([found.loss, *back], dtype=torch.float64)])
