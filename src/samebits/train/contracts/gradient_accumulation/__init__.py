"""The gradient of a global batch in passes of any size, as the trainer takes it: alone, over cycles, and counted.

Rows of text are sequences, each with its own number of targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.model import Batch, Model
from samebits.model.contracts.small_model import joined, model_of
from samebits.parallel.schedules import Lanes
from samebits.train import lanes
from samebits.train.contracts.small_run import config_of, data_of, trainer_of
from samebits.train.trainer import OURS, Parts, Trainer, clipped

CYCLES = 3
"""Of a counted run."""
RATE = 2.0**-10


def examples_of(text: Tensor, counts: Tensor) -> list[lanes.Example]:
    """The rows as the trainer sees them."""
    data = data_of(text, counts)
    return [data.sequence(place) for place in range(len(data))]


def cut_of(rows: int, micro: int) -> lanes.Cut:
    """One lane over all rows, in passes of `micro` at the most."""
    return lanes.Cut(lanes=Lanes(lanes=1, sequences=rows), micro_batch=micro)


def flat(found: lanes.Backward) -> Tensor:
    """float64: all gradients end to end, and the loss."""
    return torch.cat([joined(found.gradients).double(), torch.tensor([found.loss], dtype=torch.float64)])


def accumulated(
    text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor, *, losses: lanes.Losses = lanes.minus_logprobs
) -> Tensor:
    """Gradients and loss of all rows in passes of `micro` of them; `losses` is where faults are planted."""
    cut = cut_of(len(text), int(micro))
    return flat(lanes.backward_of(losses, model_of(weights), examples_of(text, counts), cut))


def cycles(text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor, *, parts: Parts = OURS) -> Tensor:
    """(2, P + 1): gradients and loss of two updates, each of half the rows, at a rate of 0: weights stay."""
    batch, width = len(text) // 2, text.shape[1] - 1
    config = config_of(batch, dividing(batch, int(micro)), 0.0, 2, width=width)
    trainer = trainer_of(config, text, counts, weights, parts)
    seen: list[Tensor] = []
    trainer.observers.append(lambda _, gradients: seen.append(joined(dict(gradients)).double()))
    losses = [trainer.step().loss for _ in range(2)]
    return torch.cat([torch.stack(seen), torch.tensor(losses, dtype=torch.float64)[:, None]], 1)


@dataclass(slots=True)
class Counts:
    """What happened in a run."""

    passes: int = 0
    clips: int = 0

    def losses(self, model: Model, batch: Batch, targets: Tensor) -> Tensor:
        self.passes += 1
        return lanes.minus_logprobs(model, batch, targets)

    def clip(self, gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
        self.clips += 1
        clipped(gradients, norm, max_norm)

    def backward(self, model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
        return lanes.backward_of(self.losses, model, examples, cut)

    def of(self, trainer: Trainer) -> Tensor:
        """Passes, clippings and the optimizer's updates of a whole run with these parts."""
        while trainer.done < trainer.run.steps:
            trainer.step()
        (updates,) = set(trainer.counted().values())
        return torch.tensor([self.passes, self.clips, updates])


def counting(counts: Counts) -> Parts:
    """The trainer's own parts, which count."""
    return Parts(backward=counts.backward, clip=counts.clip)


def counted(
    text: Tensor, counts: Tensor, weights: Tensor, micro: Tensor, *, parts_of: Callable[[Counts], Parts] = counting
) -> Tensor:
    """Passes, clippings, and the updates that the optimizer counted, of a run of so many cycles over all rows."""
    rows, width = len(text), text.shape[1] - 1
    config = config_of(rows, dividing(rows, int(micro)), RATE, CYCLES, width=width)
    seen = Counts()
    return seen.of(trainer_of(config, text, counts, weights, parts_of(seen)))


def dividing(batch: int, micro: int) -> int:
    """The largest size up to `micro` that divides a batch."""
    return next(size for size in range(min(micro, batch), 0, -1) if batch % size == 0)


def mean_of(losses: Tensor, count: Tensor) -> Tensor:
    """float64: the mean of the losses of all passes, one after another, over so many targets."""
    return torch.tensor([lanes.mean_loss(list(losses), int(count))], dtype=torch.float64)
