"""Completions by the engine, with the logprobs it sampled them with and the rewards they earned.

What a completion is depends on the seed, the batch, its number and the weights; not on how the engine batched it, nor
on which copy of the weights it was sampled. An engine a batch: its keys belong to the weights of that moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor

from samebits.infer import Engine, Request, Sampling
from samebits.infer.request import Completion
from samebits.model.model import Model
from samebits.parallel.collectives import even_cuts, gather
from samebits.parallel.world import Group
from samebits.parity.grpo import advantages
from samebits.parity.tasks import LONGEST_COMPLETION, STOP, Question, reward

PAGE_SIZE: Final = 16
ROLLOUTS: Final = "completions"


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


def roll_out(
    model: Model,
    asked: Sequence[Question],
    *,
    group: int,
    seed: int,
    batch: int,
    copies: Group,
    batch_requests: int = 64,
) -> list[Rollout]:
    """`group` completions of each question, in the order of the questions. Each copy samples its share of them."""
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
    cuts = even_cuts(len(requests), copies.size)
    own = requests[cuts[copies.place] : cuts[copies.place + 1]]
    longest = max(len(question.prompt) for question in asked) + LONGEST_COMPLETION
    pages = min(len(own), batch_requests) * -(-longest // PAGE_SIZE)
    engine = Engine(model, pages=pages, page_size=PAGE_SIZE, batch_requests=batch_requests)
    sampled = gathered(engine.generate(own), cuts, copies)
    made: list[Rollout] = []
    for place, question in enumerate(asked):
        members = sampled[place * group : (place + 1) * group]
        rewards = [reward(question, tokens) for tokens, _ in members]
        for (tokens, logprobs), earned, advantage in zip(members, rewards, advantages(rewards), strict=True):
            made.append(
                Rollout(question=question, tokens=tokens, logprobs=logprobs, reward=earned, advantage=advantage)
            )
    return made


def gathered(own: Sequence[Completion], cuts: Sequence[int], copies: Group) -> list[tuple[tuple[int, ...], Tensor]]:
    """Tokens and logprobs of every copy's completions, on all of them. `cuts`: where each copy's begin."""
    device = copies.world.device

    def everyones(values: Sequence[Any], dtype: torch.dtype, places: Sequence[int]) -> Tensor:
        flat = torch.zeros(places[-1], dtype=dtype, device=device)
        flat[places[copies.place] : places[copies.place + 1]] = torch.tensor(values, dtype=dtype)
        return gather(copies, flat, places, ROLLOUTS).cpu()

    lengths = everyones([len(each.tokens) for each in own], torch.int64, cuts).tolist()
    ends = [0, *accumulate(lengths)]
    places = [ends[cut] for cut in cuts]
    tokens = everyones([token for each in own for token in each.tokens], torch.int64, places)
    logprobs = everyones([value for each in own for value in each.logprobs], torch.float32, places)
    parts = zip(torch.split(tokens, lengths), torch.split(logprobs, lengths), strict=True)
    return [(tuple(words.tolist()), values) for words, values in parts]
