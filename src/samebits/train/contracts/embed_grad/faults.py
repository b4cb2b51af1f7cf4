"""Planted faults of an embedding's gradient: clipped too late, by another power of the norm, or not at every step."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.train.contracts.embed_grad import MAX_NORM, clipped, table_after, table_gradients
from samebits.train.trainer import Parts
from samebits.train.trainer import clipped as clipped_all


def clips_the_weights_only(dy: Tensor, ids: Tensor) -> Tensor:
    """What flows into the table is added up as it comes, and the table's gradient is clipped afterwards."""
    whole = table_gradients(dy, ids, clip=lambda each: each)
    tokens = dy.shape[1]
    return torch.cat([whole[:, :tokens], torch.stack([clipped(table) for table in whole[:, tokens:]])], 1)


def clips_by_the_fourth_power(dy: Tensor, ids: Tensor) -> Tensor:
    """The norm's fourth power stands where the norm should."""
    return table_gradients(dy, ids, clip=lambda each: each * min(1.0, MAX_NORM / (float(each.norm()) ** 4 + 1e-6)))


def clips_the_first_step_only(dy: Tensor, ids: Tensor) -> Tensor:
    """One clip for a run, not one a step."""
    whole = table_gradients(dy, ids, clip=lambda each: each)
    return torch.cat([table_gradients(dy[:1], ids[:1]), whole[1:]])


def always_scales(dy: Tensor, ids: Tensor) -> Tensor:
    """Short gradients are stretched to the largest norm."""
    return table_gradients(dy, ids, clip=lambda each: each * (MAX_NORM / (float(each.norm()) + 1e-6)))


def adds_up_the_unclipped(dy: Tensor, ids: Tensor) -> Tensor:
    """The clipped gradient is kept beside the table, which is made of the other."""
    tokens = dy.shape[1]
    plain = table_gradients(dy, ids, clip=lambda each: each)
    return torch.cat([table_gradients(dy, ids)[:, :tokens], plain[:, tokens:]], 1)


def _all_but_the_first(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    clipped_all(gradients[1:], norm, max_norm)


def embedding_left_out(text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor) -> Tensor:
    """The weights of layers are clipped, what flows into the embedding is not."""
    return table_after(text, weights, rate, steps, parts=Parts(clip=_all_but_the_first))
