"""The way of a gradient into the embedding's table: clipped as a whole, then added up by token, once a step; and the
table of a model that a trainer updates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from samebits.model.weights import EMBEDDING
from samebits.ops.embedding import embedding_gradient_
from samebits.ops.grad_norm import clip_grad_norm_
from samebits.train.contracts.train_stable import run_of
from samebits.train.trainer import OURS, Parts
from samebits.train.watch import BreachError

MAX_NORM = 1.0
VOCABULARY = 11


def clipped(dy: Tensor) -> Tensor:
    """The gradient of one step, no longer than the largest norm."""
    holder = torch.zeros_like(dy)
    holder.grad = dy.clone()
    clip_grad_norm_([holder], MAX_NORM)
    return holder.grad


def table_gradients(dy: Tensor, ids: Tensor, *, clip: Callable[[Tensor], Tensor] = clipped) -> Tensor:
    """(steps, tokens + vocabulary, width): for each step the clipped gradient, and below it the table's."""
    return torch.stack([_step(clip(each), ids[step]) for step, each in enumerate(dy)])


def _step(dy_TH: Tensor, ids_T: Tensor) -> Tensor:
    table = torch.zeros(VOCABULARY, dy_TH.shape[-1], device=dy_TH.device)
    return torch.cat([dy_TH, embedding_gradient_(table, ids_T, dy_TH)])


def table_after(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, *, parts: Parts = OURS) -> Tensor:
    """(vocabulary, width): the embedding after a run; NaN where the trainer stopped it."""
    trainer = run_of(text, weights, rate, steps, parts)
    try:
        for _ in range(int(steps)):
            trainer.step()
    except BreachError:
        return torch.full_like(trainer.weights[EMBEDDING], torch.nan)
    return trainer.weights[EMBEDDING]
