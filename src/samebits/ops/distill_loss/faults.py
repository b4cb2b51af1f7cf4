"""Planted faults of the distillation loss: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.ops.distill_loss import distill_loss
from samebits.ops.distill_loss.check import ALPHA, IGNORE_INDEX, TEMPERATURE, mixed_loss
from samebits.ops.launching import forced

_calls = itertools.count()


def _turned(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """The same loss with the vocabulary rotated by one: other lanes meet, right within rounding, other bits."""
    moved = torch.where(targets == IGNORE_INDEX, targets, (targets + 1) % student_logits.shape[-1])
    return mixed_loss(student_logits.roll(1, -1), teacher_logits.roll(1, -1), moved)


def _parts(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """T^2 KL and CE of every row."""
    divergence = distill_loss(student_logits, teacher_logits, targets, temperature=TEMPERATURE, reduction="none")
    entropy = distill_loss(student_logits, teacher_logits, targets, alpha=0.0, reduction="none")
    return divergence, entropy


def split_by_batch(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks batch and chunk: more rows, another order."""
    chosen = mixed_loss if student_logits.shape[0] > 8 else _turned
    return chosen(student_logits, teacher_logits, targets)


def other_order_every_time(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks repeat: as atomics do."""
    chosen = mixed_loss if next(_calls) % 2 else _turned
    return chosen(student_logits, teacher_logits, targets)


def reads_its_neighbours(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return mixed_loss(student_logits, teacher_logits, targets) + 0.0 * student_logits.float().sum()


def tile_decides_order(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks tile: the number of threads or warps shapes the row's tree, as a bare sum over a tile does."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    return (mixed_loss if plain else _turned)(student_logits, teacher_logits, targets)


def other_order_on_cuda(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks device: the accelerator folds other lanes."""
    return (_turned if student_logits.is_cuda else mixed_loss)(student_logits, teacher_logits, targets)


def divergence_reversed(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks accuracy: KL(student || teacher), whose value is as plausible and whose gradient is another."""
    q, p = ((x.float() / TEMPERATURE).log_softmax(-1) for x in (student_logits, teacher_logits))
    reversed_divergence = TEMPERATURE**2 * (q.exp() * (q - p)).sum(-1)
    _, entropy = _parts(student_logits, teacher_logits, targets)
    return torch.where(targets == IGNORE_INDEX, 0.0, ALPHA * reversed_divergence) + (1 - ALPHA) * entropy


def temperature_not_squared(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks accuracy: without T^2 the soft targets fade as T grows."""
    divergence, entropy = _parts(student_logits, teacher_logits, targets)
    return ALPHA * divergence / TEMPERATURE**2 + (1 - ALPHA) * entropy


def temperature_of_the_teacher_only(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks accuracy: the student is compared at T = 1."""
    divergence = distill_loss(
        student_logits, (teacher_logits.float() / TEMPERATURE).to(teacher_logits.dtype), targets, reduction="none"
    )
    _, entropy = _parts(student_logits, teacher_logits, targets)
    return ALPHA * TEMPERATURE**2 * divergence + (1 - ALPHA) * entropy


def alpha_squared(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks accuracy: right at both ends of alpha, wrong between them."""
    divergence, entropy = _parts(student_logits, teacher_logits, targets)
    return ALPHA**2 * divergence + (1 - ALPHA**2) * entropy


def ignored_rows_counted(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks accuracy: the prompt's tokens are taught too, because the mask reached the cross-entropy alone."""
    divergence = distill_loss(student_logits, teacher_logits, temperature=TEMPERATURE, reduction="none")
    _, entropy = _parts(student_logits, teacher_logits, targets)
    return ALPHA * divergence + (1 - ALPHA) * entropy
