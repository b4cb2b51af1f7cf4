"""The algebra of a training run: steps, tokens, parameters and positions as exact whole numbers, and the learning rate.

Knows no file and no device, and judges nothing; `plan` does. Every quantity is computed, none typed in.
Names follow the equations CFG-EQ1 to CFG-EQ10 of the training contract."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from samebits.numerics.exactly import cosine


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """What decides how many weights a decoder has."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    intermediate: int
    tied: bool = True
    """Whether the output head is the embedding."""
    head_size: int | None = None
    """None: hidden over heads."""
    norms_of_heads: bool = False
    """Whether queries and keys are normed head by head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The inputs of a run."""

    sequences: int
    """Of the data set, each `length` tokens long."""
    micro_batch: int
    accumulation: int
    ranks: int
    length: int
    epochs: int
    max_steps: int | None
    warmup: int
    peak_rate: float
    floor_ratio: float
    """The last rate over the peak rate."""
    max_repeats: int
    """How often the data may be seen."""
    architecture: Architecture
    pretrained: bool = False
    """Whether the weights were trained before."""


def batch_sequences(micro_batch: int, accumulation: int, ranks: int) -> int:
    """Sequences of one update."""
    return micro_batch * accumulation * ranks


def steps_per_epoch(sequences: int, micro_batch: int, accumulation: int, ranks: int) -> int:
    """CFG-EQ1."""
    return sequences // batch_sequences(micro_batch, accumulation, ranks)


def dropped_sequences(sequences: int, micro_batch: int, accumulation: int, ranks: int) -> int:
    """CFG-EQ1: what an epoch leaves out."""
    return sequences % batch_sequences(micro_batch, accumulation, ranks)


def reachable_steps(epochs: int, per_epoch: int) -> int:
    """CFG-EQ2."""
    return epochs * per_epoch


def actual_steps(max_steps: int | None, reach: int) -> int:
    """CFG-EQ3: the updates that a run makes."""
    return reach if max_steps is None else min(max_steps, reach)


def least_epochs(max_steps: int, per_epoch: int) -> int:
    """CFG-EQ4: the fewest epochs that reach max_steps."""
    return -(-max_steps // per_epoch)


def tokens_per_step(micro_batch: int, accumulation: int, ranks: int, length: int) -> int:
    """CFG-EQ5."""
    return batch_sequences(micro_batch, accumulation, ranks) * length


def repeats(steps: int, per_epoch: int) -> Fraction:
    """CFG-EQ6: tokens over unique tokens."""
    return Fraction(steps, per_epoch)


def warmup_fraction(warmup: int, steps: int) -> Fraction:
    """CFG-EQ7."""
    return Fraction(warmup, steps)


def learning_rate(step: int, *, peak: float, warmup: int, steps: int, floor_ratio: float) -> float:
    """CFG-EQ8, for updates 1 .. steps: up in a line, then down a half cosine to floor_ratio * peak."""
    if step <= warmup:
        return peak * step / warmup
    floor = peak * floor_ratio
    return floor + (peak - floor) * (1 + cosine(math.pi * (step - warmup) / (steps - warmup))) / 2


def parameters(architecture: Architecture) -> int:
    """CFG-EQ9: embedding, two norms and seven matrices a layer, the last norm, and the head where it is not tied.

    Where queries and keys are normed, two norms of a head more."""
    a = architecture
    size = a.head_size or a.hidden // a.heads
    layer = 2 * a.hidden + 2 * a.hidden * size * (a.heads + a.key_heads) + 3 * a.hidden * a.intermediate
    layer += 2 * size if a.norms_of_heads else 0
    embedding = a.vocabulary * a.hidden
    return embedding + a.layers * layer + a.hidden + (0 if a.tied else embedding)


def position_after(steps: int, per_epoch: int, accumulation: int) -> tuple[int, int]:
    """CFG-EQ10: (epoch, micro-batch of it) at which a run goes on after so many completed steps."""
    return steps // per_epoch, steps % per_epoch * accumulation


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What a plan comes to. Without a whole step in an epoch, nothing follows: then steps is 0."""

    per_epoch: int
    dropped: int
    reach: int
    steps: int
    per_step: int
    tokens: int
    parameters: int

    @classmethod
    def of(cls, plan: Plan) -> Run:
        cut = (plan.sequences, plan.micro_batch, plan.accumulation, plan.ranks)
        per_epoch = steps_per_epoch(*cut)
        reach = reachable_steps(plan.epochs, per_epoch)
        steps = actual_steps(plan.max_steps, reach)
        per_step = tokens_per_step(plan.micro_batch, plan.accumulation, plan.ranks, plan.length)
        return cls(
            per_epoch=per_epoch, dropped=dropped_sequences(*cut), reach=reach, steps=steps, per_step=per_step,
            tokens=steps * per_step, parameters=parameters(plan.architecture),
        )  # fmt: skip
