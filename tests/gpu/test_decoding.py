"""Decoding on the GPU by CUDA graphs captured from the model's pass: the bits of the pass itself, for any requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.infer.load import SMALL

from samebits import ops
from samebits.infer import Engine, Request, Sampling, engine
from samebits.infer.decode_step import DecodeStep, captured_rows
from samebits.model import Model
from samebits.numerics.bits import same_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

SHAPES = {"plain": SMALL, "norms of heads": replace(SMALL, use_qk_norm=True, tie_word_embeddings=False)}
LENGTHS = (3, 40, 1, 17, 16)


def answers(model: Model, requests: int) -> list[Any]:
    """Of requests that end one after another, so that steps have every number of them."""
    asked = [
        Request(
            prompt=tuple((7 * number + place) % 200 for place in range(LENGTHS[number % len(LENGTHS)])),
            max_tokens=4 + 2 * number,
            sampling=Sampling(seed=number % 2, temperature=1.0),
        )
        for number in range(requests)
    ]
    made = Engine(model, pages=80, batch_tokens=64, batch_requests=16)
    return [(each.tokens, [value.hex() for value in each.logprobs]) for each in made.generate(asked)]


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_graph_has_the_bits_of_the_pass(
    shape: str, dtype: torch.dtype, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tokens and logprobs(graph) == tokens and logprobs(pass), alone and among eleven; rows fill up to 16."""
    model = Model.new(SHAPES[shape], 3).to("cuda", dtype)
    model = model.for_inference() if joined else model
    ran: list[int] = []
    run = DecodeStep.run
    monkeypatch.setattr(DecodeStep, "run", lambda self, ids, *rest: ran.append(len(ids)) or run(self, ids, *rest))
    for requests in (1, 11):
        found = answers(model, requests)
        assert max(ran) == requests
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(engine, "can_capture", lambda _: False)
            assert answers(model, requests) == found


def test_tokens_and_logprobs_are_those_of_the_cpu() -> None:
    """In float32 the graph's answers are the list of calls' answers."""
    model = Model.new(SMALL, 3)
    assert answers(Model.new(SMALL, 3).to("cuda"), 5) == answers(model, 5)


def test_pages_that_are_not_told_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the graph goes on with the pages of its first step."""
    model = Model.new(SMALL, 3).to("cuda", torch.bfloat16)
    wanted = answers(model, 5)
    told = DecodeStep._name_pages

    def once(self: DecodeStep, tables: Any) -> None:
        if self._captured is None:
            told(self, tables)

    monkeypatch.setattr(DecodeStep, "_name_pages", once)
    assert answers(model, 5) != wanted


def test_weights_that_are_updated_in_place_are_seen() -> None:
    model = Model.new(SMALL, 3).to("cuda", torch.bfloat16)
    made, asked = Engine(model, pages=8), [Request(prompt=(1, 2, 3), max_tokens=5)]
    first = made.generate(asked)[0].logprobs
    with torch.no_grad():
        model.weights["model.layers.0.mlp.up_proj.weight"].mul_(1.5)
    again = made.generate(asked)[0].logprobs
    assert first != again == Engine(model, pages=8).generate(asked)[0].logprobs


def test_few_graphs_serve_every_number_of_requests() -> None:
    rows = [captured_rows(requests, torch.device("cuda")) for requests in range(1, 257)]
    assert len(set(rows)) == 35 and all(requests <= row for requests, row in enumerate(rows, 1))


@pytest.mark.parametrize("vocabulary", [1, 255, 300, 49153])
def test_logits_give_the_logprobs_of_hidden_states(vocabulary: int) -> None:
    """logprob_of_logits(lm_head(h, w), ids) == selected_logprob(h, w, ids), and in float32 that of the CPU."""
    hidden, weight = torch.randn(9, 64), torch.randn(vocabulary, 64)
    ids = torch.randint(vocabulary, (9,))
    for dtype in (torch.float32, torch.bfloat16):
        given = [each.to("cuda", dtype) for each in (hidden, weight)]
        found = ops.logprob_of_logits(ops.lm_head(*given), ids.cuda())
        assert same_bits(found, ops.selected_logprob(*given, ids.cuda()))
    assert same_bits(ops.logprob_of_logits(ops.lm_head(hidden, weight), ids), ops.selected_logprob(hidden, weight, ids))
