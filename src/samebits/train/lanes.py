"""The gradient of a global batch: lanes of one chain each, any micro-batch cut within them, folded by a balanced tree.

Lanes decide bits; where a lane is cut, whether its sequences are packed or padded, and on which rank it is, does not.
Knows no optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samebits.model import Batch, Model
from samebits.model.batch import IGNORED
from samebits.parallel.schedules import Lanes
from samebits.train.ranks import ALONE, Ranks

Example = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(inputs, targets) of one sequence."""
Gradients = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """How a global batch is gone through."""

    lanes: Lanes
    micro_batch: int
    """Sequences of one backward pass. Decides memory, not bits."""
    padded: bool = False
    width: int = 0
    """Tokens of a padded row."""
    ranks: Ranks = ALONE
    """Who goes through which lanes. Decides no bit either."""

    def numbers(self, lanes: range, examples: Sequence[Example]) -> int:
        """How many logprobs some lanes have, those without a target included."""
        places = range(lanes.start * self.lanes.sequences, lanes.stop * self.lanes.sequences)
        return sum(self.width if self.padded else len(examples[place][1]) for place in places)

    def pieces(self, lane: int) -> Iterator[range]:
        """The micro-batches of a lane, as places in the global batch; none crosses a lane's border."""
        first, last = lane * self.lanes.sequences, (lane + 1) * self.lanes.sequences
        for start in range(first, last, self.micro_batch):
            yield range(start, min(start + self.micro_batch, last))


@dataclass(frozen=True, kw_only=True, slots=True)
class Backward:
    """What a global batch gave."""

    gradients: Gradients
    """float32, of the mean over all targets."""
    loss: float
    """That mean of minus the logprobs: an exact sum of float32 numbers, rounded once."""
    targets: int


def backward(model: Model, examples: Sequence[Example], cut: Cut) -> Backward:
    """The gradient of the mean loss over all targets of the global batch, which is known before the first pass.

    Each rank goes through lanes of its own and returns the gradients that it updates."""
    count = sum(int((targets != IGNORED).sum()) for _, targets in examples)
    own = cut.ranks.lanes(cut.lanes)
    seen: list[Tensor] = []

    def gradients_of(lane: int) -> Gradients:
        summing = model.with_sums()
        for places in cut.pieces(lane):
            logprobs = _logprobs(summing, [examples[place] for place in places], cut)
            torch.autograd.backward(logprobs, torch.full_like(logprobs, -1.0 / count))
            seen.append(logprobs.detach().reshape(-1))
        return summing.gradients()

    gradients = cut.ranks.reduced(fold(len(own), gradients_of, own.start))
    everyones = cut.ranks.everyones(torch.cat(seen), cut.lanes, lambda lanes: cut.numbers(lanes, examples))
    return Backward(gradients=gradients, loss=mean_loss([everyones], count), targets=count)


def mean_loss(logprobs: Sequence[Tensor], count: int) -> float:
    """Minus the mean, in any order: the sum is exact. Places without a target hold 0 and change nothing."""
    return -math.fsum(torch.cat(list(logprobs)).tolist()) / count


def fold(count: int, of: Callable[[int], Gradients], first: int = 0) -> Gradients:
    """The balanced tree over `count` lanes, a power of two, neighbours first: `parallel.schedules.tree`.

    Lane by lane, so that no more than one sum a level is held."""
    if count == 1:
        return of(first)
    left = fold(count // 2, of, first)
    right = fold(count // 2, of, first + count // 2)
    for name, gradient in left.items():
        gradient.add_(right[name])
    return left


def _logprobs(model: Model, examples: Sequence[Example], cut: Cut) -> Tensor:
    """The logprob of every target, end to end (T) or in rows (B, width); 0 where there is none."""
    device = model.device
    inputs = [torch.from_numpy(each) for each, _ in examples]
    targets = torch.cat([torch.from_numpy(each) for _, each in examples]).to(device)
    if not cut.padded:
        return model.logprobs(model.hidden(Batch.of(inputs, device=device)), targets)
    lengths = [len(each) for each in inputs]
    rows = torch.zeros(len(inputs), cut.width, dtype=torch.int64)
    for row, each in zip(rows, inputs, strict=True):
        row[: len(each)] = each
    batch = Batch.of_padded(rows.to(device), lengths, "right")
    return batch.to_padded(model.logprobs(model.hidden(batch), targets), "right")
