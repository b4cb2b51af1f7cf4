"""What was measured on whole models, stock torch beside samebits: typed facts, and whether every bit was kept.

Measures nothing; `demonstrating` does. Knows nothing of how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from samebits.numerics.bits import ulp_distance
from samebits.parity.scoring import Comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One place of an answer that was given twice."""

    text: str
    crowded_text: str
    alone: float
    crowded: float
    """Its logprob, a float32."""
    ulps: int
    same: bool
    """The token and every bit of its logprob."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One side's two answers to the question."""

    alone: str
    crowded: str
    tokens: tuple[Token, ...]
    """Up to the first token that is another: after it the two answers go on from different texts."""

    @property
    def differing(self) -> int:
        return sum(not token.same for token in self.tokens)

    @property
    def first(self) -> int | None:
        """The place of the first difference."""
        return next((place for place, token in enumerate(self.tokens) if not token.same), None)

    def as_dict(self) -> dict[str, Any]:
        exact = [asdict(token) | {"alone": token.alone.hex(), "crowded": token.crowded.hex()} for token in self.tokens]
        return asdict(self) | {"differing": self.differing, "first": self.first, "tokens": exact}


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowd:
    """One question alone and among others, on both sides."""

    model: str
    question: str
    others: tuple[str, ...]
    stock: Answer
    ours: Answer

    def as_dict(self) -> dict[str, Any]:
        names = {"model": self.model, "question": self.question, "others": list(self.others)}
        return names | {"stock": self.stock.as_dict(), "samebits": self.ours.as_dict()}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """One way to cut the global batch, and what came of it."""

    micro_batch: int
    accumulation: int
    collation: str
    digest: str
    """Of the last checkpoint."""
    losses: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """One side's runs, which differ in the cut alone."""

    runs: tuple[TrainingRun, ...]
    weights: int
    differing: int
    """Weights that another cut gave other bits: the most over all runs, against the first."""

    @property
    def kept(self) -> bool:
        """Whether there is one checkpoint and one curve."""
        return len({each.digest for each in self.runs}) == len({each.losses for each in self.runs}) == 1

    @property
    def loss_ulps(self) -> tuple[int, ...]:
        """How far the losses of each update lie apart, as float32: the most over all runs, against the first."""
        losses = np.array([each.losses for each in self.runs], np.float32)
        apart = [ulp_distance(losses[0], other) for other in losses[1:]]
        return tuple(np.max(apart, axis=0).tolist())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"one_checkpoint": self.kept, "loss_ulps": list(self.loss_ulps)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Tokens as the engine drew them against the trainer's forward."""

    comparison: Comparison
    ulps: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        return self.comparison.as_dict() | {"ulps": list(self.ulps)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Engine against trainer with one model's weights, on both sides."""

    model: str
    stock: Scores
    ours: Scores

    def as_dict(self) -> dict[str, Any]:
        return {"model": self.model, "stock": self.stock.as_dict(), "samebits": self.ours.as_dict()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """All that was measured on whole models."""

    stock_cuts: Cuts
    our_cuts: Cuts
    policies: tuple[Policy, ...]
    crowd: Crowd | None = None
    """None where the real model was left out, or is not there."""
    missing: str = ""
    """Why the real model could not be asked."""

    @property
    def kept(self) -> bool:
        """Whether samebits kept every bit of all that was measured."""
        crowded = self.crowd is None or not self.crowd.ours.differing
        return crowded and self.our_cuts.kept and all(each.ours.comparison.exact for each in self.policies)

    def as_dict(self) -> dict[str, Any]:
        training = {"stock": self.stock_cuts.as_dict(), "samebits": self.our_cuts.as_dict()}
        return {
            "crowd": self.crowd.as_dict() if self.crowd else None,
            "training": training,
            "on_policy": [each.as_dict() for each in self.policies],
            "missing": self.missing,
        }
