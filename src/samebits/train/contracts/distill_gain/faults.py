"""Planted faults of a distillation that make a teacher worthless: its logits are those of other rows, or negated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.model import Batch
from samebits.train.contracts.distill_gain import held_out_losses
from samebits.train.distill import Teacher


@dataclass(frozen=True, slots=True)
class _OtherRows:
    """Logits of the row before, as if batches came in another order."""

    teacher: Teacher

    def logits(self, batch: Batch) -> Tensor:
        rows = torch.split(batch.ids, list(batch.lengths))
        return self.teacher.logits(Batch.of([rows[-1], *rows[:-1]]))


@dataclass(frozen=True, slots=True)
class _WrongSign:
    """Negated logits: the least likely token is the most likely one."""

    teacher: Teacher

    def logits(self, batch: Batch) -> Tensor:
        return -self.teacher.logits(batch)


def batches_in_another_order(text: Tensor, held: Tensor, weights: Tensor, steps: Tensor) -> Tensor:
    """The teacher's batches are in another order."""
    return held_out_losses(text, held, weights, steps, seen_as=_OtherRows)


def wrong_sign(text: Tensor, held: Tensor, weights: Tensor, steps: Tensor) -> Tensor:
    """The teacher's logits have the wrong sign."""
    return held_out_losses(text, held, weights, steps, seen_as=_WrongSign)
