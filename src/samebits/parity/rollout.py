"""Completions by the engine, with the logprobs it sampled them with and the rewards they earned.

What a completion is depends on the seed, the batch, its number and the weights; not on how the engine batched it. An
engine a batch: keys that it computed belong to the weights of that moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits.infer import Engine, Request, Sampling
from samebits.model.model import Model
from samebits.parity.grpo import advantages
from samebits.parity.tasks import LONGEST_COMPLETION, STOP, Question, reward

PAGE_SIZE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One completion of one question."""

    question: Question
    tokens: tuple[int, ...]
    logprobs: Tensor
    """float32, of each token, as the engine gave them."""
    reward: float
    advantage: float
    """Within the completions of the same question."""


def roll_out(model: Model, asked: Sequence[Question], *, group: int, seed: int, batch: int,
             batch_requests: int = 64) -> list[Rollout]:  # fmt: skip
    """`group` completions of each question, in the order of the questions."""
    requests = [
        Request(
            prompt=question.prompt,
            max_tokens=LONGEST_COMPLETION,
            sampling=Sampling(seed=seed),
            stop=frozenset({STOP}),
            number=(batch * len(asked) + place) * group + member,
        )
        for place, question in enumerate(asked)
        for member in range(group)
    ]
    longest = max(len(question.prompt) for question in asked) + LONGEST_COMPLETION
    pages = min(len(requests), batch_requests) * -(-longest // PAGE_SIZE)
    engine = Engine(model, pages=pages, page_size=PAGE_SIZE, batch_requests=batch_requests)
    completions = engine.generate(requests)
    made: list[Rollout] = []
    for place, question in enumerate(asked):
        members = completions[place * group : (place + 1) * group]
        rewards = [reward(question, each.tokens) for each in members]
        for each, earned, advantage in zip(members, rewards, advantages(rewards), strict=True):
            logprobs = torch.tensor(each.logprobs, dtype=torch.float32)
            values: dict[str, Any] = {
                "tokens": each.tokens,
                "logprobs": logprobs,
                "reward": earned,
                "advantage": advantage,
            }
            made.append(Rollout(question=question, **values))
    return made
