"""Planted faults of merging: a straight mean, shares swapped, one threshold, heads counted, shapes not checked."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.post.contracts.model_merging import mean_of_drops, merged_files, spherical, trimmed
from samebits.post.merge_methods import Combining, combine


def straight(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """LERP for SLERP."""
    t = float(share[0])
    return (1 - t) * first + t * second


def swapped(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    return spherical(second, first, share)


def one_threshold(delta: Tensor, density: Tensor) -> Tensor:
    """All rows are trimmed as if they were one tensor."""
    return trimmed(delta.reshape(1, -1), density).reshape(delta.shape)


def one_threshold_for_ties(base: Tensor, first: Tensor, second: Tensor, density: Tensor) -> Tensor:
    deltas = [one_threshold(other - base, density) for other in (first, second)]
    return combine(base, deltas, [0.5, 0.5], Combining(elect=True, normalize=True, scale=1.0))


def heads_are_counted(base: Tensor, first: Tensor, second: Tensor, density: Tensor) -> Tensor:
    """The sign that more models have wins, however small they are: a tie is positive."""
    deltas = [trimmed(other - base, density) for other in (first, second)]
    positive = deltas[0].sign() + deltas[1].sign() >= 0
    agree = [torch.where(positive, each > 0, each < 0) for each in deltas]
    count = torch.stack(agree).sum(0)
    total = deltas[0] * agree[0] + deltas[1] * agree[1]
    return base + torch.where(count > 0, total / count.clamp(min=1), total)


def not_scaled_up(delta: Tensor, density: Tensor, draws: Tensor) -> Tensor:
    """What is kept is not divided by the share that is."""
    return mean_of_drops(delta, density, draws, rescale=False)


def shapes_not_checked(first: Tensor, second: Tensor) -> Tensor:
    """What is too wide is cut off."""
    return merged_files(first, second[:, : first.shape[1]])
