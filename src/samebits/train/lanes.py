"""The gradient of a global batch: lanes of one chain each, any micro-batch cut, folded by a balanced tree.

Lanes decide bits; where a lane is cut, whether it shares a pass with others, whether its sequences are packed or
padded, and on which rank it is, does not. Knows no optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samebits.model import Batch, Model
from samebits.model.batch import IGNORED
from samebits.ops.threads import torch_at_rest
from samebits.parallel.schedules import Lanes
from samebits.train.ranks import ALONE, Ranks

Example = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(inputs, targets) of one sequence."""
Gradients = dict[str, Tensor]
Losses = Callable[[Model, Batch, Tensor], Tensor]
"""What is minimised: (model, inputs, targets) to a float32 loss for each target, end to end, 0 where there is none."""


class Passes(Protocol):
    """How passes are made: operator by operator, or as they were captured before. Decides speed alone."""

    def summing(self, model: Model, borders: Sequence[int] | None, held: int) -> Model:
        """The model with sums of zero, as `Model.with_sums` has it; so many sums of earlier lanes are still needed."""

    def through(self, losses: Losses, summing: Model, examples: Sequence[Example], cut: Cut, weight: float) -> Tensor:
        """Forward and backward over some sequences, each target's loss weighted alike; the losses."""

    def gradients(self, summing: Model, lane: int = 0) -> Gradients:
        """What the sums came to, as `Model.gradients` has it. Asked for once."""


class OneByOne:
    """Operator by operator, in sums of their own."""

    def summing(self, model: Model, borders: Sequence[int] | None, held: int) -> Model:
        return model.with_sums(borders)

    def through(self, losses: Losses, summing: Model, examples: Sequence[Example], cut: Cut, weight: float) -> Tensor:
        # A caller may have gradients off, around evaluations between its steps.
        with torch.enable_grad():
            found = losses(summing, *_collated(examples, cut, summing.device))
            torch.autograd.backward(found, torch.full_like(found, weight))
        return found.detach()

    def gradients(self, summing: Model, lane: int = 0) -> Gradients:
        return summing.gradients(lane)


ONE_BY_ONE: Final = OneByOne()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """How a global batch is gone through."""

    lanes: Lanes
    micro_batch: int
    """The most sequences of one pass. Decides memory, not bits."""
    padded: bool = False
    width: int = 0
    """Tokens of a padded row."""
    ranks: Ranks = ALONE
    """Who goes through which lanes. Decides no bit either."""
    passes: Passes = ONE_BY_ONE

    def places(self, lanes: range) -> range:
        """The sequences of some lanes, as places in the global batch."""
        return range(lanes.start * self.lanes.sequences, lanes.stop * self.lanes.sequences)


@dataclass(frozen=True, kw_only=True, slots=True)
class Backward:
    """What a global batch gave."""

    gradients: Gradients
    """float32, of the mean over all targets."""
    loss: float
    """That mean: an exact sum of float32 numbers, rounded once."""
    targets: int


def backward(model: Model, examples: Sequence[Example], cut: Cut) -> Backward:
    """The gradient of the mean of minus the targets' logprobs."""
    return backward_of(minus_logprobs, model, examples, cut)


def minus_logprobs(model: Model, batch: Batch, targets: Tensor) -> Tensor:
    """The loss of a language model, target by target; 0 where there is none."""
    return -model.logprobs(model.hidden(batch), targets)


def backward_of(losses: Losses, model: Model, examples: Sequence[Example], cut: Cut) -> Backward:
    """The gradient of the mean loss over all targets of the global batch, which is known before the first pass.

    Each rank goes through lanes of its own and returns the gradients that it updates."""
    count = sum(int((targets != IGNORED).sum()) for _, targets in examples)
    seen: list[Tensor] = []

    def go_through(summing: Model, places: range) -> None:
        chosen = [examples[place] for place in places]
        seen.append(cut.passes.through(losses, summing, chosen, cut, 1.0 / count))

    def numbers(lanes: range) -> int:
        """How many losses some lanes have, those of places without a target included."""
        return sum(len(examples[place][1]) for place in cut.places(lanes))

    gradients = summed(model, [len(inputs) for inputs, _ in examples], cut, go_through)
    everyones = cut.ranks.everyones(torch.cat(seen), cut.lanes, numbers)
    return Backward(gradients=gradients, loss=mean_loss([everyones], count), targets=count)


def summed(model: Model, tokens: Sequence[int], cut: Cut, go_through: Callable[[Model, range], None]) -> Gradients:
    """What flows into the weights from all sequences, of which each has so many tokens; of it, what this rank updates.

    `go_through` goes forward and backward over some of them, at consecutive places, with a model that has sums."""
    own = cut.ranks.lanes(cut.lanes)
    width = cut.lanes.together(len(own), cut.micro_batch)

    def of(first: int) -> Gradients:
        places = cut.places(range(first, first + width))
        borders = [0, *accumulate(tokens[place] for place in places)][:: cut.lanes.sequences]
        # Of the lanes before, the tree holds a sum for each one in the binary number of their passes.
        held = ((first - own.start) // width).bit_count()
        summing = cut.passes.summing(model, borders if width > 1 else None, held)
        for start in range(places.start, places.stop, cut.micro_batch):
            go_through(summing, range(start, min(start + cut.micro_batch, places.stop)))
        return fold(width, partial(cut.passes.gradients, summing))

    with torch_at_rest(model.device):
        return cut.ranks.reduced(fold(len(own), of, own.start, width))


def mean_loss(losses: Sequence[Tensor], count: int) -> float:
    """The mean, in any order: the sum is exact. Places without a target hold 0 and change nothing."""
    return math.fsum(torch.cat(list(losses)).tolist()) / count


def fold(count: int, of: Callable[[int], Gradients], first: int = 0, width: int = 1) -> Gradients:
    """The balanced tree over `count` lanes, a power of two, neighbours first: `parallel.schedules.tree`.

    `of` gives the sum of `width` of them, from a lane on. One after another: no more than one sum a level is held."""
    if count == width:
        return of(first)
    left = fold(count // 2, of, first, width)
    right = fold(count // 2, of, first + count // 2, width)
    torch._foreach_add_(list(left.values()), [right[name] for name in left])
    return left


def _collated(examples: Sequence[Example], cut: Cut, device: torch.device) -> tuple[Batch, Tensor]:
    """(inputs, targets) of a pass, end to end; padded rows are taken apart again before they are computed with."""
    inputs = [torch.from_numpy(each) for each, _ in examples]
    targets = torch.cat([torch.from_numpy(each) for _, each in examples]).to(device)
    if not cut.padded:
        return Batch.of(inputs, device=device), targets
    rows = torch.zeros(len(inputs), cut.width, dtype=torch.int64)
    for row, each in zip(rows, inputs, strict=True):
        row[: len(each)] = each
    return Batch.of_padded(rows.to(device), [len(each) for each in inputs], "right"), targets
