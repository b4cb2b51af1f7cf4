"""Planted faults of accumulation: divisions that are wrong, a buffer that is not cleared, too many updates."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from samebits.model import Batch, Model
from samebits.model.contracts.small_model import model_of
from samebits.train import lanes
from samebits.train.contracts.gradient_accumulation import (
    CYCLES,
    RATE,
    Counts,
    accumulated,
    counted,
    counting,
    cut_of,
    cycles,
    dividing,
    examples_of,
    flat,
)
from samebits.train.contracts.small_run import config_of, trainer_of
from samebits.train.trainer import Parts


def not_divided(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """What flows in is a sum over all targets, for the loss of each counts as often as there are targets."""
    count = int(counts.sum())

    def losses(model: Model, batch: Batch, targets: Tensor) -> Tensor:
        return lanes.minus_logprobs(model, batch, targets) * count

    return accumulated(text, counts, weights, micro, losses=losses)


def mean_of_means(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """Each pass takes the mean over its own targets; the passes count alike, however many they have."""
    size = int(micro)
    passes = [
        accumulated(text[start : start + size], counts[start : start + size], weights, micro)
        for start in range(0, len(text), size)
    ]
    return torch.stack(passes).mean(0)


def gone_through_twice(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """The sums still hold a cycle over the same rows when a pass adds its own."""
    share = 1.0 / int(counts.sum())

    def losses(model: Model, batch: Batch, targets: Tensor) -> Tensor:
        left = lanes.minus_logprobs(model, batch, targets)
        torch.autograd.backward(left, torch.full_like(left, share))
        return lanes.minus_logprobs(model, batch, targets)

    return accumulated(text, counts, weights, micro, losses=losses)


def sums_in_16_bits(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """What was summed so far is kept in bfloat16 between passes."""
    model, total = model_of(weights), torch.zeros(())
    share = 1.0 / int(counts.sum())
    loss = 0.0
    for row, count in zip(text, counts, strict=True):
        found = lanes.backward(model, examples_of(row[None], count[None]), cut_of(1, 1))
        part = flat(found) * (int(count) * share)
        total = (total + part[:-1]).bfloat16().double()
        loss += float(part[-1])
    return torch.cat([total, torch.tensor([loss], dtype=torch.float64)])


@dataclass(slots=True)
class _NotCleared:
    """Gradients are added to those of the cycle before."""

    kept: dict[str, Tensor] = field(default_factory=dict)

    def backward(self, model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
        found = lanes.backward(model, examples, cut)
        for name, gradient in found.gradients.items():
            self.kept[name] = gradient.clone() + self.kept.get(name, torch.zeros_like(gradient))
        return lanes.Backward(
            gradients={name: each.clone() for name, each in self.kept.items()}, loss=found.loss, targets=found.targets
        )


def buffer_not_cleared(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """The second cycle sees the first."""
    return cycles(text, counts, weights, micro, parts=Parts(backward=_NotCleared().backward))


def update_for_every_pass(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """The optimizer is called after each pass: as many passes, each a batch of its own."""
    size, seen = dividing(len(text), int(micro)), Counts()
    config = config_of(size, size, RATE, CYCLES * len(text) // size, width=text.shape[1] - 1)
    return seen.of(trainer_of(config, text, counts, weights, counting(seen)))


def _clips_each_pass(counts: Counts) -> Parts:
    own = counting(counts)

    def backward(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
        found = own.backward(model, examples, cut)
        for _ in range(0, len(examples), cut.micro_batch):
            own.clip([each.clone() for each in found.gradients.values()], torch.tensor(1.0), 1.0)
        return found

    return Parts(backward=backward, clip=own.clip)


def every_pass_is_clipped(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor) -> Tensor:
    """Gradients are clipped before they are added up, and once more after."""
    return counted(text, counts, weights, micro, parts_of=_clips_each_pass)


def mean_not_divided(losses: Tensor, count: Tensor) -> Tensor:
    """The sum of the losses."""
    return losses.double().sum()[None]


def mean_in_float32(losses: Tensor, count: Tensor) -> Tensor:
    """Losses are added up one after another in their own format."""
    total = torch.zeros((), dtype=losses.dtype)
    for each in losses.reshape(-1):
        total = total + each
    return (total.double() / int(count))[None]
