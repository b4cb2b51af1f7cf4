"""Whether a teacher helps: the same student with and without one, seed by seed, judged on text that neither saw.

A paired t-test, one-sided, in a few lines: the tests need no statistics package. No variance is no evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from samebits.model import Batch, Model
from samebits.train import checkpoint
from samebits.train.assessment import shape_of
from samebits.train.configuration import TrainConfig
from samebits.train.data import Data

# Intervals of Simpson's rule from 0 to |t|; far more than the fourth digit of p needs.
INTERVALS = 2000
AT_ONCE = 10


def held_out_loss(config: TrainConfig, run: Path, data: Data, count: int) -> float:
    """Minus the mean logprob of the targets of the first `count` sequences, by a run's last weights."""
    model = Model(config=shape_of(config), weights=checkpoint.read(run).weights)
    losses: list[float] = []
    for start in range(0, count, AT_ONCE):
        examples = [data.sequence(place) for place in range(start, min(start + AT_ONCE, count))]
        batch = Batch.of([torch.from_numpy(inputs) for inputs, _ in examples])
        targets = torch.cat([torch.from_numpy(each) for _, each in examples])
        with torch.no_grad():
            logprobs = model.logprobs(model.hidden(batch), targets)
        losses += (-logprobs[targets != -100]).tolist()
    return math.fsum(losses) / len(losses)


def p_of_smaller(without: Sequence[float], with_teacher: Sequence[float]) -> float:
    """How likely differences as large as these are if a teacher does not help: small where it does."""
    gains = [before - after for before, after in zip(without, with_teacher, strict=True)]
    mean = math.fsum(gains) / len(gains)
    variance = math.fsum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1)
    if variance == 0.0:
        return 1.0
    return upper_tail(mean / math.sqrt(variance / len(gains)), len(gains) - 1)


def upper_tail(t: float, freedom: int) -> float:
    """P(T > t) of Student's t."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    step = abs(t) / INTERVALS

    def density(x: float) -> float:
        return scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)

    inner = math.fsum((4 if place % 2 else 2) * density(place * step) for place in range(1, INTERVALS))
    half = step / 3 * (density(0.0) + inner + density(abs(t)))
    return 0.5 - half if t >= 0 else 0.5 + half
