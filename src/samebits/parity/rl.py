"""GRPO with engine and trainer on the same weights: sample, score, update, and say how on-policy it was.

Every batch is compared before its first update, by the forward pass from which the gradient flows and not by another.
In one process or on the ranks of a grid, with the same bits. Knows nothing of how it is shown."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from samebits import ops
from samebits.model.config import ModelConfig
from samebits.model.model import Model
from samebits.model.presets import PRESETS
from samebits.model.weights import EMBEDDING
from samebits.parallel.grid import Grid
from samebits.parallel.schedules import Lanes
from samebits.parity.grpo import Objective, Terms, terms, token_weights
from samebits.parity.rollout import Rollout, roll_out
from samebits.parity.scoring import Comparison, Spoken, compare, numbers, score
from samebits.parity.stock import STOCK
from samebits.parity.tasks import TASKS, VOCABULARY, questions
from samebits.train.lanes import Cut, summed
from samebits.train.ranks import ALONE, ranks_of
from samebits.train.trainer import clipped

LARGEST_NORM: Final = 1.0
# The most that each number of a run may be: beyond it lies a mistake, and memory would be taken before it shows.
LIMITS: Final = {"prompts": 4096, "num_generations": 1024, "num_iterations": 64, "micro_batch_size": 2**20}


@dataclass(frozen=True, kw_only=True, slots=True)
class RLConfig:
    """A run. All of it decides bits, except `micro_batch_size` and `engine_requests`."""

    seed: int = 0
    task: str = "addition"
    prompts: int = 8
    """Questions in a batch."""
    num_generations: int = 16
    """Completions of each question."""
    num_iterations: int = 1
    """Optimizer steps on each batch."""
    learning_rate: float = 3e-3
    epsilon: float = 0.2
    beta: float = 0.0
    """Of the divergence from the policy before the first batch."""
    stock: bool = False
    """Whether the operators are plain torch functions instead of samebits': the negative control."""
    lanes: int = 1
    """Chains into which a batch's completions are cut, which copies of the weights can share: a power of two."""
    micro_batch_size: int = 32
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
        count = self.prompts * self.num_generations
        if type(self.lanes) is not int or self.lanes < 1 or self.lanes & (self.lanes - 1) or count % self.lanes:
            allowed = f"a power of two that divides prompts x num_generations, {count}"
            raise ValueError(f"rl: lanes is {self.lanes!r}; allowed: {allowed}")
        if self.num_generations < 2:
            raise ValueError(
                f"rl: num_generations is {self.num_generations}; allowed: at least 2, since"
                " advantages are differences within a group"
            )
        if self.task not in TASKS:
            raise ValueError(f"rl: task is {self.task!r}; allowed: {', '.join(TASKS)}")
        if not 0.0 < self.learning_rate < math.inf:
            raise ValueError(f"rl: learning rate is {self.learning_rate}; allowed: finite, above 0")
        Objective(epsilon=self.epsilon, beta=self.beta)  # judges both

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def objective(self) -> Objective:
        return Objective(epsilon=self.epsilon, beta=self.beta)


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


def byte_config(preset: str) -> ModelConfig:
    """The shape of a preset over bytes."""
    if preset not in PRESETS:
        raise ValueError(f"rl: model is {preset!r}; allowed: {', '.join(PRESETS)}")
    return replace(PRESETS[preset], vocab_size=VOCABULARY)


class Loop:
    """A policy, its optimizer, and one batch after another; on one of several ranks, this rank's part of it."""

    def __init__(self, settings: RLConfig, config: ModelConfig, grid: Grid | None = None) -> None:
        if config.vocab_size < VOCABULARY:
            raise ValueError(f"rl: the vocabulary is {config.vocab_size}; allowed: at least {VOCABULARY}, one a byte")
        self.settings = settings
        model = Model.new(config, settings.seed)
        self.ranks = ALONE if grid is None else ranks_of(grid, model)
        if settings.stock and self.ranks.world.size > 1:
            raise ValueError(f"rl: stock torch on {self.ranks.world.size} ranks; allowed: samebits, or one rank")
        self._lanes = Lanes(
            lanes=settings.lanes, sequences=settings.prompts * settings.num_generations // settings.lanes
        )
        # Whether the copies can share the lanes is known before anything is sampled.
        self.ranks.lanes(self._lanes)
        self.weights = {name: self.ranks.take(name, weight) for name, weight in model.weights.items()}
        base = replace(model, operators=STOCK) if settings.stock else model
        self.policy = self.ranks.model(base, self.weights, torch.float32)
        self.reference: Model | None = None
        if settings.beta:
            frozen = {name: weight.clone() for name, weight in self.weights.items()}
            self.reference = self.ranks.model(base, frozen, torch.float32)
        updated = [weight for weight in self.weights.values() if weight.numel()]
        self.optimizer = ops.AdamW(updated, lr=settings.learning_rate, weight_decay=0.0)
        self.batches = 0

    def step(self) -> BatchRecord:
        """Samples a batch by the engine and updates the policy on it."""
        self.batches += 1
        rollouts = self.sample(self.batches)
        updates = [self.update(rollouts) for _ in range(self.settings.num_iterations)]
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
        options = {"group": settings.num_generations, "seed": settings.seed, "batch_requests": settings.engine_requests}
        try:
            return roll_out(self._speaking(), asked, batch=batch, copies=self.ranks.copies, **options)
        except ArithmeticError as error:
            raise ValueError(f"rl: batch {batch} could not be sampled: {error}") from error

    def _speaking(self) -> Model:
        """The policy as the engine wants it: where ranks share a copy of the weights, they are cut in another way."""
        if self.policy.split is None:
            return self.policy
        return self.ranks.model(self.policy, self.weights, torch.float32, gathers=True)

    def update(self, rollouts: Sequence[Rollout]) -> Update:
        """One optimizer step. The gradient of a weight is one chain over each lane's completions, however they are cut
        and whichever rank goes through them."""
        spoken = [(each.question.prompt, each.tokens) for each in rollouts]
        ends = [0, *accumulate(len(tokens) for _, tokens in spoken)]
        old_T = torch.cat([each.logprobs for each in rollouts])
        advantage, share = token_weights([each.advantage for each in rollouts], [len(tokens) for _, tokens in spoken])
        new: list[Tensor] = []
        reference: list[Tensor] = []

        def found_in(tokens: slice, logprobs: Tensor, references: Sequence[Tensor]) -> Terms:
            others = numbers(torch.cat(list(references))) if references else None
            spans = (numbers(old_T[tokens]), advantage[tokens], share[tokens])
            return terms(self.settings.objective, numbers(logprobs), *spans, others)

        def go_through(trainer: Model, places: range) -> None:
            part = spoken[places.start : places.stop]
            scored, others = score(trainer, part), self._reference(part)
            found = found_in(slice(ends[places.start], ends[places.stop]), scored, others)
            upstream = torch.from_numpy(found.gradients.astype(np.float32))
            torch.autograd.backward(scored, upstream.to(scored.device))
            new.append(scored.detach())
            reference.extend(others)

        gradients = self._gradients([len(prompt) + len(tokens) - 1 for prompt, tokens in spoken], go_through)
        new_T, *references = (self._everyones(each, ends) for each in (new, reference) if each)
        found = found_in(slice(None), new_T, references)
        comparison, loss = compare(old_T, new_T), math.fsum(found.losses.tolist())
        if not math.isfinite(loss):
            raise ValueError(f"rl: the loss is {loss} in batch {self.batches}; allowed: finite")
        norm = self._descend(gradients)
        return Update(comparison=comparison, loss=loss, gradient_norm=norm, clipped=int(found.clipped.sum()))

    def digest(self) -> str:
        """SHA-256 of all weights, by name and bits; on one of several ranks nothing elsewhere, and all must ask."""
        whole = self.ranks.whole(self.weights, {name: name for name in self.weights})
        if whole is None:
            return ""
        total = hashlib.sha256()
        for name, weight in whole.items():
            total.update(name.encode() + b"\0" + weight.detach().cpu().contiguous().numpy().tobytes())
        return total.hexdigest()

    def _gradients(self, tokens: Sequence[int], go_through: Callable[[Model, range], None]) -> dict[str, Tensor]:
        """What this rank updates of them: from resumed sums, or by torch's autograd."""
        if not self.settings.stock:
            cut = Cut(lanes=self._lanes, micro_batch=self.settings.micro_batch_size, ranks=self.ranks)
            return summed(self.policy, tokens, cut, go_through)
        wanted = {name: weight.detach().requires_grad_() for name, weight in self.policy.weights.items()}
        trainer = replace(self.policy, weights=wanted)
        for start in range(0, len(tokens), self.settings.micro_batch_size):
            go_through(trainer, range(start, min(start + self.settings.micro_batch_size, len(tokens))))
        return {name: weight.grad for name, weight in wanted.items() if weight.grad is not None}

    def _everyones(self, own: Sequence[Tensor], ends: Sequence[int]) -> Tensor:
        """Numbers of the tokens of this rank's lanes, with those of all others."""

        def count(lanes: range) -> int:
            return ends[lanes.stop * self._lanes.sequences] - ends[lanes.start * self._lanes.sequences]

        return self.ranks.everyones(torch.cat(list(own)), self._lanes, count).cpu()

    def _reference(self, part: Sequence[Spoken]) -> list[Tensor]:
        """The first policy's logprobs, where they are asked for."""
        if self.reference is None:
            return []
        with torch.no_grad():
            return [score(self.reference, part)]

    def _descend(self, gradients: dict[str, Tensor]) -> float:
        norm, _ = self.ranks.norms(gradients, EMBEDDING)
        if not math.isfinite(float(norm)):
            raise ValueError(f"rl: the gradient's norm is {float(norm)} in batch {self.batches}; allowed: finite")
        clipped(list(gradients.values()), norm, LARGEST_NORM)
        for name, weight in self.weights.items():
            weight.grad = gradients[name]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.policy = self.ranks.model(self.policy, self.weights, torch.float32)
        return float(norm)


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One optimizer step: what the trainer saw before it."""

    comparison: Comparison
    loss: float
    gradient_norm: float
    clipped: int
