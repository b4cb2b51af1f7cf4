"""The arithmetic of GRPO: advantages within a group, the clipped objective, and what flows back into each logprob.

Sums are exact (rounded once, by math.fsum), the rest is computed token by token, so that no order and no cut into
micro-batches can reach a bit. Knows no model: logprobs come in, the gradient of each of them goes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from samebits.parity.scoring import importance_ratios

# Added to the deviation of a group's rewards, so that nearly equal ones do not explode.
LEAST_DEVIATION: Final = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """mean over sequences of the mean over tokens of -min(ratio A, clip(ratio) A) + beta * divergence."""

    epsilon: float = 0.2
    """How far from 1 a ratio still moves the objective."""
    beta: float = 0.0
    """Of the divergence from the reference policy; 0 leaves it out."""

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < 1.0:
            raise ValueError(f"rl: epsilon is {self.epsilon}; allowed: above 0, below 1")
        if not 0.0 <= self.beta < math.inf:
            raise ValueError(f"rl: beta is {self.beta}; allowed: finite, at least 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Of each token, in float64: what it adds to the loss, what flows back into its logprob, whether it is clipped."""

    losses: np.ndarray
    gradients: np.ndarray
    clipped: np.ndarray


def advantages(rewards: Sequence[float]) -> tuple[float, ...]:
    """(reward - mean) / (deviation + LEAST_DEVIATION) within one group; exactly 0 where all are equal."""
    if min(rewards) == max(rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in rewards) / len(rewards))
    return tuple((each - mean) / (deviation + LEAST_DEVIATION) for each in rewards)


def token_weights(advantage: Sequence[float], lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Of each token of all sequences: its advantage, and its share 1 / (sequences * length of its own)."""
    shares = [1.0 / (len(lengths) * length) for length in lengths]
    return np.repeat(np.asarray(advantage, np.float64), lengths), np.repeat(np.asarray(shares, np.float64), lengths)


def terms(
    objective: Objective,
    new: np.ndarray,
    old: np.ndarray,
    advantage: np.ndarray,
    share: np.ndarray,
    reference: np.ndarray | None,
) -> Terms:
    """new, old, reference: float32 logprobs of the tokens; `old` are those with which they were sampled."""
    ratio = importance_ratios(new, old).astype(np.float64)
    free = ratio * advantage
    bounded = np.clip(ratio, 1.0 - objective.epsilon, 1.0 + objective.epsilon) * advantage
    moves = free <= bounded
    losses = -np.minimum(free, bounded)
    gradients = np.where(moves, -free, 0.0)
    if objective.beta:
        if reference is None:
            raise ValueError(f"rl: beta is {objective.beta} and there is no reference; allowed: both or none")
        opposite = importance_ratios(reference, new).astype(np.float64)
        distance = reference.astype(np.float64) - new.astype(np.float64)
        losses = losses + objective.beta * (opposite - 1.0 - distance)
        gradients = gradients + objective.beta * (1.0 - opposite)
    return Terms(losses=losses * share, gradients=gradients * share, clipped=~moves)
