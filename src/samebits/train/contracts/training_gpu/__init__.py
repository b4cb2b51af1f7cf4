"""Short runs of the trainer on the device of their weights, as the host sees them: what is copied, what comes back.

Knows no kernel."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from samebits.model.contracts.small_model import joined
from samebits.trace.transfers import transfers
from samebits.train.contracts.small_run import config_of, trainer_of
from samebits.train.trainer import OURS, Parts, Trainer

KINDS: Final = ("to device", "to host", "wait")
HOST: Final = -1
"""The number of the host among devices."""


def run_of(
    text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, device: str = "", parts: Parts = OURS
) -> Trainer:
    """One sequence, seen once a step, on the weights' device or on another."""
    targets = len(text) - 1
    config = config_of(1, 1, float(rate), int(steps), width=targets, device=device or str(weights.device))
    return trainer_of(config, text[None].cpu(), torch.tensor([targets]), weights, parts)


def copies(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, *, parts: Parts = OURS) -> Tensor:
    """(steps, 4): copies to the device, copies to the host, waits for a number, and bytes, of each step."""
    trainer, lines = run_of(text, weights, rate, steps, parts=parts), []
    for _ in range(int(steps)):
        with transfers() as seen:
            trainer.step()
        lines.append([*(seen.count(kind) for kind in KINDS), seen.bytes])
    return torch.tensor(lines)


def brought_back(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """(3, weights) on the host: those that the run began with, the device's after it, those of its checkpoint."""
    trainer = run_of(text, weights, rate, steps)
    began = joined(trainer.weights).cpu()
    for _ in range(int(steps)):
        trainer.step()
    state = trainer.state()
    assert state is not None, "one rank has the whole state"
    return torch.stack([began, joined(trainer.weights).cpu(), joined(state["weights"]).cpu()])


def losses(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """(steps) float64, on the weights' device."""
    trainer = run_of(text, weights, rate, steps)
    return torch.tensor([trainer.step().loss for _ in range(int(steps))], dtype=torch.float64)


def device_used(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, device: Tensor) -> Tensor:
    """Where the weights of a run are that asked for a device by its number; a ValueError where it is not there."""
    number = int(device)
    try:
        trainer = run_of(text, weights, rate, steps, "cpu" if number == HOST else f"cuda:{number}")
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"training.device: cuda:{number}: {error}") from error
    found = {each.device for each in trainer.weights.values()}
    return torch.tensor([HOST if each.type == "cpu" else each.index for each in found])
