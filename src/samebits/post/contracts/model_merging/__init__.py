"""Merging as its contract asks for it: a row is a tensor, merged by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.post.merge_methods import (
    Combining,
    Cosine,
    Trim,
    combine,
    kept,
    magnitudes,
    slerp,
    slerp_factors,
    threshold,
)

PLAIN = Combining(elect=True, normalize=True, scale=1.0)


def spherical(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """(N, K): row by row the spherical mean; `share` is how far it is from the first."""
    rows = []
    for one, two in zip(first, second, strict=True):
        angle = Cosine()
        angle.add(one, two)
        rows.append(slerp(one, two, slerp_factors(angle.value(), float(share[0]))))
    return torch.stack(rows)


def trimmed(delta: Tensor, density: Tensor) -> Tensor:
    """(N, K): of each row the largest magnitudes, as many as the density asks for; zeros elsewhere."""
    return torch.stack([_trimmed_row(row, float(density[0])) for row in delta])


def ties(base: Tensor, first: Tensor, second: Tensor, density: Tensor) -> Tensor:
    """(N, K): row by row the merge of two models by TIES, each with a weight of one half."""
    rows = []
    for row, *others in zip(base, first, second, strict=True):
        deltas = [_trimmed_row(other - row, float(density[0])) for other in others]
        rows.append(combine(row, deltas, [0.5, 0.5], PLAIN))
    return torch.stack(rows)


def _trimmed_row(delta: Tensor, density: float) -> Tensor:
    return Trim(threshold(lambda: [magnitudes(delta)], kept(density, len(delta))))(delta)
