"""GRPO with engine and trainer in one process on the same weights: sample, score, update, and say how on-policy it was.

Every batch is compared before its first update, by the forward pass from which the gradient flows and not by another.
Knows nothing of how it is shown."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from samebits import ops
from samebits.model.config import Config
from samebits.model.model import Model
from samebits.model.presets import PRESETS
from samebits.parity.grpo import Objective, terms, token_weights
from samebits.parity.rollout import Rollout, roll_out
from samebits.parity.scoring import Comparison, compare, numbers, score
from samebits.parity.stock import STOCK
from samebits.parity.tasks import TASKS, VOCABULARY, questions

LARGEST_NORM: Final = 1.0
# The most that each number of a run may be: beyond it lies a mistake, and memory would be taken before it shows.
LIMITS: Final = {"prompts": 4096, "group": 1024, "updates": 64, "micro": 2**20}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A run. All of it decides bits, except `micro` and `engine_requests`."""

    seed: int = 0
    task: str = "addition"
    prompts: int = 8
    """Questions in a batch."""
    group: int = 16
    """Completions of each question."""
    updates: int = 1
    """Optimizer steps on each batch."""
    learning_rate: float = 3e-3
    clip: float = 0.2
    reference_weight: float = 0.0
    """Of the divergence from the policy before the first batch."""
    stock: bool = False
    """Whether the operators are plain torch functions instead of samebits': the negative control."""
    micro: int = 32
    """Completions in one forward pass of the trainer. Speed and memory only."""
    engine_requests: int = 64
    """Most completions that the engine runs at once. Speed and memory only."""

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"rl: {name} is {value!r}; allowed: a whole number, 1 to {most}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"rl: seed is {self.seed}; allowed: 0 to 2^63 - 1")
        if self.group < 2:
            raise ValueError(f"rl: group is {self.group}; allowed: at least 2, an advantage is a difference")
        if self.task not in TASKS:
            raise ValueError(f"rl: task is {self.task!r}; allowed: {', '.join(TASKS)}")
        if not 0.0 < self.learning_rate < math.inf:
            raise ValueError(f"rl: learning rate is {self.learning_rate}; allowed: finite, above 0")
        Objective(clip=self.clip, reference_weight=self.reference_weight)  # judges both

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def objective(self) -> Objective:
        return Objective(clip=self.clip, reference_weight=self.reference_weight)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRecord:
    """What happened in one batch."""

    batch: int
    reward: float
    """Mean over all completions."""
    loss: float
    """At the first update."""
    gradient_norm: float
    """At the first update, before it is clipped."""
    first: Comparison
    """Engine and trainer before the first update: the same weights."""
    last: Comparison
    """And before the last one, when the weights have moved `updates` - 1 times."""
    clipped: int
    """Tokens whose ratio was out of bounds at the last update."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"first": self.first.as_dict(), "last": self.last.as_dict()}


def byte_config(preset: str) -> Config:
    """The shape of a preset over bytes."""
    if preset not in PRESETS:
        raise ValueError(f"rl: model is {preset!r}; allowed: {', '.join(PRESETS)}")
    return replace(PRESETS[preset], vocabulary=VOCABULARY)


class Loop:
    """A policy, its optimizer, and one batch after another."""

    def __init__(self, settings: Settings, config: Config) -> None:
        if config.vocabulary < VOCABULARY:
            raise ValueError(f"rl: the vocabulary is {config.vocabulary}; allowed: at least {VOCABULARY}, one a byte")
        self.settings = settings
        model = Model.new(config, settings.seed)
        self.policy = replace(model, operators=STOCK) if settings.stock else model
        self.reference: Model | None = None
        if settings.reference_weight:
            frozen = {name: weight.clone() for name, weight in self.policy.weights.items()}
            self.reference = replace(self.policy, weights=frozen)
        self.optimizer = ops.AdamW(self.policy.weights.values(), lr=settings.learning_rate, weight_decay=0.0)
        self.batches = 0

    def step(self) -> BatchRecord:
        """Samples a batch by the engine and updates the policy on it."""
        self.batches += 1
        rollouts = self.sample(self.batches)
        updates = [self.update(rollouts) for _ in range(self.settings.updates)]
        return BatchRecord(
            batch=self.batches,
            reward=math.fsum(each.reward for each in rollouts) / len(rollouts),
            loss=updates[0].loss,
            gradient_norm=updates[0].gradient_norm,
            first=updates[0].comparison,
            last=updates[-1].comparison,
            clipped=updates[-1].clipped,
        )

    def sample(self, batch: int) -> list[Rollout]:
        settings = self.settings
        asked = questions(settings.task, settings.seed, batch, settings.prompts)
        options = {"group": settings.group, "seed": settings.seed, "batch_requests": settings.engine_requests}
        try:
            return roll_out(self.policy, asked, batch=batch, **options)
        except ArithmeticError as error:
            raise ValueError(f"rl: batch {batch} could not be sampled: {error}") from error

    def update(self, rollouts: Sequence[Rollout]) -> Update:
        """One optimizer step. The gradient of a weight is one chain over all completions, however they are cut."""
        trainer = self._differentiable()
        old_T = torch.cat([each.logprobs for each in rollouts])
        shares = token_weights([each.advantage for each in rollouts], [len(each.tokens) for each in rollouts])
        new, losses, clipped, place = [], [], 0, 0
        for start in range(0, len(rollouts), self.settings.micro):
            part = [(each.question.prompt, each.tokens) for each in rollouts[start : start + self.settings.micro]]
            scored = score(trainer, part)
            span = slice(place, place := place + len(scored))
            reference = self._reference(part)
            advantage, share = (each[span] for each in shares)
            found = terms(
                self.settings.objective, numbers(scored), numbers(old_T[span]), advantage, share, reference
            )  # fmt: skip
            upstream = torch.from_numpy(found.gradients.astype(np.float32))
            torch.autograd.backward(scored, upstream.to(scored.device))
            new.append(scored.detach().cpu())
            losses += found.losses.tolist()
            clipped += int(found.clipped.sum())
        comparison, loss = compare(old_T, torch.cat(new)), math.fsum(losses)
        if not math.isfinite(loss):
            raise ValueError(f"rl: the loss is {loss} in batch {self.batches}; allowed: finite")
        norm = self._descend(_gradients(trainer))
        return Update(comparison=comparison, loss=loss, gradient_norm=norm, clipped=clipped)

    def digest(self) -> str:
        """SHA-256 of all weights, by name and bits."""
        total = hashlib.sha256()
        for name, weight in self.policy.weights.items():
            total.update(name.encode() + b"\0" + weight.detach().cpu().contiguous().numpy().tobytes())
        return total.hexdigest()

    def _differentiable(self) -> Model:
        """The policy's own memory, to be differentiated: into resumed sums, or by torch's autograd."""
        if not self.settings.stock:
            return self.policy.with_sums()
        wanted = {name: weight.detach().requires_grad_() for name, weight in self.policy.weights.items()}
        return replace(self.policy, weights=wanted)

    def _reference(self, part: Sequence[tuple[Sequence[int], Sequence[int]]]) -> np.ndarray | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            return numbers(score(self.reference, part))

    def _descend(self, gradients: dict[str, Tensor]) -> float:
        for name, weight in self.policy.weights.items():
            weight.grad = gradients[name]
        norm = float(ops.clip_grad_norm_(self.policy.weights.values(), LARGEST_NORM))
        if not math.isfinite(norm):
            raise ValueError(f"rl: the gradient's norm is {norm} in batch {self.batches}; allowed: finite")
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One optimizer step: what the trainer saw before it."""

    comparison: Comparison
    loss: float
    gradient_norm: float
    clipped: int


def _gradients(trainer: Model) -> dict[str, Tensor]:
    if trainer.sums is not None:
        return trainer.gradients()
    found = {name: weight.grad for name, weight in trainer.weights.items()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}
