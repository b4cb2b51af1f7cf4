"""Planted faults of the distillation loss: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops.distill_loss import distill_loss
from samebits.ops.distill_loss.check import ALPHA, IGNORE_INDEX, TEMPERATURE, mixed_loss

_calls = itertools.count()


def _turned(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """The same loss with the vocabulary rotated by one: other lanes meet, right within rounding, other bits."""
    moved = torch.where(targets == IGNORE_INDEX, targets, (targets + 1) % student_logits.shape[-1])
    return mixed_loss(student_logits.roll(1, -1), teacher_logits.roll(1, -1), moved)


def _parts(
    student_logits: Tensor, teacher_logits: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """T^2 KL and CE of every row."""
    divergence = mixed_loss(student_logits, teacher_logits, targets, temperature=temperature, alpha=1.0)
    return divergence, mixed_loss(student_logits, teacher_logits, targets, alpha=0.0)


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


def divergence_reversed(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = TEMPERATURE,
    alpha: float = ALPHA,
) -> Tensor:
    """Breaks accuracy: KL(student || teacher), whose value is as plausible and whose gradient is another."""
    q, p = ((x.float() / temperature).log_softmax(-1) for x in (student_logits, teacher_logits))
    reversed_divergence = temperature**2 * (q.exp() * (q - p)).sum(-1)
    _, entropy = _parts(student_logits, teacher_logits, targets, temperature)
    return torch.where(targets == IGNORE_INDEX, 0.0, alpha * reversed_divergence) + (1 - alpha) * entropy


def temperature_not_squared(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = TEMPERATURE,
    alpha: float = ALPHA,
) -> Tensor:
    """Breaks accuracy: without T^2 the soft targets fade as T grows."""
    divergence, entropy = _parts(student_logits, teacher_logits, targets, temperature)
    return alpha * divergence / temperature**2 + (1 - alpha) * entropy


def temperature_of_the_teacher_only(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = TEMPERATURE,
    alpha: float = ALPHA,
) -> Tensor:
    """Breaks accuracy: the student is compared at T = 1."""
    cooled = (teacher_logits.float() / temperature).to(teacher_logits.dtype)
    divergence, _ = _parts(student_logits, cooled, targets, 1.0)
    _, entropy = _parts(student_logits, teacher_logits, targets, temperature)
    return alpha * temperature**2 * divergence + (1 - alpha) * entropy


def negative_constant(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = TEMPERATURE,
    alpha: float = ALPHA,
) -> Tensor:
    """Breaks the sign of KL: a constant is in its place, and only a watched curve would show it."""
    _, entropy = _parts(student_logits, teacher_logits, targets, temperature)
    return torch.where(targets == IGNORE_INDEX, 0.0, -0.25 * alpha * temperature**2) + (1 - alpha) * entropy


def summed_plainly(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = TEMPERATURE,
    alpha: float = ALPHA,
) -> Tensor:
    """Breaks the sign of KL, by rounding: the sum of p (log p - log q), of which near distributions leave little."""
    q, p = ((x.float() / temperature).log_softmax(-1) for x in (student_logits, teacher_logits))
    divergence = temperature**2 * (p.exp() * (p - q)).sum(-1)
    _, entropy = _parts(student_logits, teacher_logits, targets, temperature)
    return torch.where(targets == IGNORE_INDEX, 0.0, alpha * divergence) + (1 - alpha) * entropy


def alpha_swapped(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = TEMPERATURE,
    alpha: float = ALPHA,
) -> Tensor:
    """Breaks both ends: alpha weighs the cross-entropy."""
    return mixed_loss(student_logits, teacher_logits, targets, temperature=temperature, alpha=1 - alpha)


def temperature_zero_accepted(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = TEMPERATURE,
    alpha: float = ALPHA,
) -> Tensor:
    """Accepts bad input: 0 is taken for 1, as a default that is false does."""
    return mixed_loss(student_logits, teacher_logits, targets, temperature=temperature or 1.0, alpha=alpha)


def alpha_squared(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = TEMPERATURE,
    alpha: float = ALPHA,
) -> Tensor:
    """Breaks what lies between the ends of alpha, where it is right."""
    divergence, entropy = _parts(student_logits, teacher_logits, targets, temperature)
    return alpha**2 * divergence + (1 - alpha**2) * entropy


def ignored_rows_counted(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks accuracy: the prompt's tokens are taught too, because the mask reached the cross-entropy alone."""
    divergence = distill_loss(student_logits, teacher_logits, temperature=TEMPERATURE, reduction="none")
    _, entropy = _parts(student_logits, teacher_logits, targets, TEMPERATURE)
    return ALPHA * divergence + (1 - ALPHA) * entropy


def loses_the_last_tile(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks accuracy: of more than 16 tokens, those past the last whole tile of 16 are left out of KL's sum."""
    q, p = ((x.float() / TEMPERATURE).log_softmax(-1) for x in (student_logits, teacher_logits))
    kept = max(q.shape[1] // 16 * 16, min(q.shape[1], 16))
    divergence = TEMPERATURE**2 * (p.exp() * (p - q))[:, :kept].sum(-1)
    _, entropy = _parts(student_logits, teacher_logits, targets, TEMPERATURE)
    return torch.where(targets == IGNORE_INDEX, 0.0, ALPHA * divergence) + (1 - ALPHA) * entropy


def sums_in_sixteen_bits(student_logits: Tensor, teacher_logits: Tensor, targets: Tensor) -> Tensor:
    """Breaks accuracy: softmaxes and their divergence in bfloat16."""
    q, p = ((x.bfloat16() / TEMPERATURE).log_softmax(-1) for x in (student_logits, teacher_logits))
    divergence = TEMPERATURE**2 * (p.exp() * (p - q)).sum(-1).float()
    _, entropy = _parts(student_logits, teacher_logits, targets, TEMPERATURE)
    return torch.where(targets == IGNORE_INDEX, 0.0, ALPHA * divergence) + (1 - ALPHA) * entropy
