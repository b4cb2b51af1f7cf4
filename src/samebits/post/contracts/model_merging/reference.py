"""The rules of merging in float64, number by number: the spherical mean, trimming, and TIES."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def spherical64(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """sin((1 - t) a) / sin(a) of the first plus sin(t a) / sin(a) of the second."""
    rows, t = [], float(share[0])
    for one, two in zip(first.double().numpy(), second.double().numpy(), strict=True):
        angle = np.arccos(np.clip(one @ two / np.sqrt(one @ one) / np.sqrt(two @ two), -1.0, 1.0))
        rows.append((np.sin((1 - t) * angle) * one + np.sin(t * angle) * two) / np.sin(angle))
    return torch.from_numpy(np.stack(rows))


def trimmed64(delta: Tensor, density: Tensor) -> Tensor:
    rows = []
    for row in delta.double().tolist():
        keep = max(1, int(float(density[0]) * len(row)))
        order = sorted(range(len(row)), key=lambda place: (-abs(row[place]), place))[:keep]
        rows.append([value if place in order else 0.0 for place, value in enumerate(row)])
    return torch.tensor(rows, dtype=torch.float64)


def ties64(base: Tensor, first: Tensor, second: Tensor, density: Tensor) -> Tensor:
    """In float64 but for what TIES decides by: differences and their sum are those of the format."""
    one, two = (trimmed64(other - base, density) / 2 for other in (first, second))
    sign = torch.where((one.to(base.dtype) + two.to(base.dtype)) >= 0, 1.0, -1.0)
    agree = [(each.sign() == sign).double() for each in (one, two)]
    count = sum(agree, torch.zeros_like(one))
    total = one * agree[0] + two * agree[1]
    return base.double() + torch.where(count > 0, 2 * total / count.clamp(min=1), total)


def mean_of_drops64(delta: Tensor, density: Tensor, draws: Tensor) -> Tensor:
    """What is dropped from."""
    return delta.double()


def merged_files64(first: Tensor, second: Tensor) -> Tensor:
    """The mean."""
    return (first.double() + second.double()) / 2
