"""Generation on real ranks: tokens and logprobs of one rank, and of the trainer's forward on those ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.infer.load import SMALL
from tests.parallel.ranks import on_ranks

from samebits.infer import Engine, Request, Sampling
from samebits.model import Model
from samebits.model.split import Split, SplitOperators
from samebits.parallel.world import World
from samebits.parity.scoring import compare, score

SHAPES = {
    "plain": SMALL,
    "norms of heads": replace(SMALL, use_qk_norm=True, tie_word_embeddings=False),
    "wide vocabulary": replace(SMALL, vocab_size=700),
}
REQUESTS = [
    Request(
        prompt=tuple((7 * number + place) % 200 for place in range(3 + 13 * number)),
        max_tokens=8,
        sampling=Sampling(seed=number, temperature=number / 4),
        score_prompt=number % 2 == 0,
        top_logprobs=2,
    )
    for number in range(6)
]


def answers(engine: Engine) -> list[Any]:
    """Twice: the second time some prompts are in the cache. Few pages, so that requests are preempted."""
    return [
        (each.tokens, each.logprobs, each.prompt_logprobs)
        for each in (*engine.generate(REQUESTS), *engine.generate(REQUESTS))
    ]


def engine_of(model: Model) -> Engine:
    return Engine(model.for_inference(), pages=12, batch_tokens=24, batch_requests=4)


@cache
def alone(shape: str, dtype: torch.dtype) -> list[Any]:
    return answers(engine_of(Model.new(SHAPES[shape], 3).to(dtype=dtype)))


def on_rank(world: World, shape: str, dtype: torch.dtype) -> tuple[list[Any], str]:
    """The answers, and how the trainer's forward on the same ranks scores them."""
    whole = Model.new(SHAPES[shape], 3).to(dtype=dtype)
    found = answers(engine_of(whole.parted(Split(config=whole.config, group=world.group, gathers=True))))
    trainer = whole.parted(Split(config=whole.config, group=world.group))
    spoken = [(request.prompt, tokens) for request, (tokens, _, _) in zip(REQUESTS, found, strict=False)]
    said = torch.tensor([each for _, logprobs, _ in found[: len(REQUESTS)] for each in logprobs])
    return found, str(compare(said, score(trainer.with_sums(), spoken).detach()))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_say_what_one_rank_says(ranks: int, shape: str) -> None:
    for found, scored in on_ranks(ranks, on_rank, shape, torch.float32):
        assert found == alone(shape, torch.float32)
        assert scored.startswith("0 of 48 tokens differ")


def test_short_numbers_too() -> None:
    for found, scored in on_ranks(3, on_rank, "norms of heads", torch.bfloat16):
        assert found == alone("norms of heads", torch.bfloat16)
        assert scored.startswith("0 of 48 tokens differ")


def summed_natively(world: World) -> list[Any]:
    """Planted: products with parts of the inputs, added by the backend."""
    whole = Model.new(SMALL, 3)
    parted = whole.parted(Split(config=SMALL, group=world.group))

    def inward(self: SplitOperators, x: torch.Tensor, weight: torch.Tensor, sums: object, name: str) -> torch.Tensor:
        y = x @ weight.T
        torch.distributed.all_reduce(y)
        return y

    SplitOperators.inward = inward  # type: ignore[method-assign,assignment]
    return answers(engine_of(parted))


def test_a_native_sum_is_noticed() -> None:
    for found in on_ranks(2, summed_natively):
        assert found != alone("plain", torch.float32)
