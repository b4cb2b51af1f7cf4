"""What must be refused, from the numbers of a plan alone; shares no code with the validator."""

from __future__ import annotations

import torch
from torch import Tensor

LARGE_MODEL = 100_000_000


def refused64(plans: Tensor) -> Tensor:
    """1 for each obligation that a plan breaks; the epochs that would reach its steps."""
    return torch.tensor([_row(row) for row in plans.tolist()], dtype=torch.float64, device=plans.device)


def _row(row: list[float]) -> list[float]:
    n, b, g, ranks, length, epochs, asked, warmup = (int(value) for value in row[:8])
    seen, vocabulary, width, layers, heads, groups, inner, tied, updates, stray = (int(value) for value in row[10:])
    found = dict.fromkeys(range(1, 13), 0)
    if stray:
        return [float(each) for each in (found | {10: 1}).values()]
    # Whole micro-batches, then whole updates of them, then whole rounds of the ranks.
    per_epoch = n // b // g // ranks
    steps = min(asked, epochs * per_epoch) if asked else epochs * per_epoch
    found[9] = updates != steps
    if width % heads or width // heads % 2 or heads % groups:
        found[11] = 1
    elif not per_epoch:
        found[8] = 1
    else:
        tokens_of_a_step, weights = (
            b * g * ranks * length,
            _weights(vocabulary, width, layers, heads, groups, inner, tied),
        )
        found[1] = asked > epochs * per_epoch
        found[12] = (asked + per_epoch - 1) // per_epoch if found[1] else 0
        found[2] = found[4] = warmup >= steps
        found[3] = warmup * 10 > steps and warmup > 1
        found[6] = weights >= LARGE_MODEL and tokens_of_a_step < 65_536
        found[7] = steps * tokens_of_a_step < 10 * weights or steps > seen * per_epoch
    return [float(each) for each in found.values()]


def _weights(vocabulary: int, width: int, layers: int, heads: int, groups: int, inner: int, tied: int) -> int:
    """Tensor by tensor."""
    query, key = width * width, width * (width // heads) * groups
    layer = width + query + key + key + query + width + 3 * width * inner
    return vocabulary * width * (1 if tied else 2) + layers * layer + width
