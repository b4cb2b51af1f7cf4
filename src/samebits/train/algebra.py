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

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    tie_word_embeddings: bool = True
    """Whether the output head is the embedding."""
    head_dim: int | None = None
    """None: hidden_size over num_attention_heads."""
    use_qk_norm: bool = False
    """Whether queries and keys are normed head by head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The inputs of a run."""

    num_sequences: int
    """Of the data set, each `max_length` tokens long."""
    micro_batch_size: int
    gradient_accumulation_steps: int
    ranks: int
    max_length: int
    num_train_epochs: int
    max_steps: int | None
    warmup_steps: int
    lr: float
    min_lr_ratio: float
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


def learning_rate(step: int, *, lr: float, warmup_steps: int, steps: int, min_lr_ratio: float) -> float:
    """CFG-EQ8, for updates 1 .. steps: up in a line, then down a half cosine to min_lr_ratio * lr."""
    if step <= warmup_steps:
        return lr * step / warmup_steps
    least = lr * min_lr_ratio
    return least + (lr - least) * (1 + cosine(math.pi * (step - warmup_steps) / (steps - warmup_steps))) / 2


def parameters(architecture: Architecture) -> int:
    """CFG-EQ9: embedding, two norms and seven matrices a layer, the last norm, and the head where it is not tied.

    Where queries and keys are normed, two norms of a head more."""
    a = architecture
    size = a.head_dim or a.hidden_size // a.num_attention_heads
    layer = (
        2 * a.hidden_size
        + 2 * a.hidden_size * size * (a.num_attention_heads + a.num_key_value_heads)
        + 3 * a.hidden_size * a.intermediate_size
    )
    layer += 2 * size if a.use_qk_norm else 0
    embedding = a.vocab_size * a.hidden_size
    return embedding + a.num_hidden_layers * layer + a.hidden_size + (0 if a.tie_word_embeddings else embedding)


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
        cut = (plan.num_sequences, plan.micro_batch_size, plan.gradient_accumulation_steps, plan.ranks)
        per_epoch = steps_per_epoch(*cut)
        reach = reachable_steps(plan.num_train_epochs, per_epoch)
        steps = actual_steps(plan.max_steps, reach)
        per_step = tokens_per_step(plan.micro_batch_size, plan.gradient_accumulation_steps, plan.ranks, plan.max_length)
        return cls(
            per_epoch=per_epoch,
            dropped=dropped_sequences(*cut),
            reach=reach,
            steps=steps,
            per_step=per_step,
            tokens=steps * per_step,
            parameters=parameters(plan.architecture),
        )
