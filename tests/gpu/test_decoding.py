"""Decoding on the GPU by CUDA graphs, of the model's pass and of the step for Hopper: the bits of the pass itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.infer.load import SMALL as SMALLER

from samebits import ops
from samebits.bench.cases import Setting
from samebits.bench.shapes import PUBLISHED
from samebits.bench.stock_model import random_weights
from samebits.infer import Engine, Request, Sampling, chosen_step
from samebits.infer.chosen_step import HOPPER, NONE, PLAIN, step_type
from samebits.infer.decode_step import DecodeStep, captured_rows, capturing
from samebits.infer.drawing import Choices
from samebits.infer.pages import LayerCache
from samebits.model import Model
from samebits.numerics.bits import same_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

SMALL = replace(SMALLER, head_dim=64)
SHAPES = {"plain": SMALL, "norms of heads": replace(SMALL, use_qk_norm=True, tie_word_embeddings=False)}
LENGTHS = (3, 40, 1, 17, 16)
CUDA = torch.device("cuda")
REPLAYS = 12
# Short, so that compiling takes no longer than it must: layers, and a vocabulary that ends within a tile.
PUBLIC = {
    "llama": replace(PUBLISHED["llama-3-8b"], num_hidden_layers=2, vocab_size=5003),
    "smollm2": replace(PUBLISHED["smollm2-135m"], num_hidden_layers=3, vocab_size=3001),
}


def answers(model: Model, requests: int, decode_step: str | None = None) -> list[Any]:
    """Of requests that end one after another, so that steps have every number of them."""
    asked = [
        Request(
            prompt=tuple((7 * number + place) % 200 for place in range(LENGTHS[number % len(LENGTHS)])),
            max_tokens=4 + 2 * number,
            sampling=Sampling(seed=number % 2, temperature=1.0),
        )
        for number in range(requests)
    ]
    made = Engine(model, pages=80, batch_tokens=64, batch_requests=16, decode_step=decode_step)
    return [(each.tokens, [value.hex() for value in each.logprobs]) for each in made.generate(asked)]


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_graph_has_the_bits_of_the_pass(
    shape: str, dtype: torch.dtype, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tokens and logprobs(graph) == tokens and logprobs(pass), alone and among eleven; rows fill up to 16. Of joined
    weights in 16 bits both graphs, of which the engine takes the one for Hopper."""
    model = Model.new(SHAPES[shape], 3).to("cuda", dtype)
    model = model.for_inference() if joined else model
    ran: list[int] = []
    run = DecodeStep.run
    monkeypatch.setattr(DecodeStep, "run", lambda self, ids, *rest: ran.append(len(ids)) or run(self, ids, *rest))
    on_hopper = joined and dtype == torch.bfloat16
    assert Engine(model, pages=8).decode_step == (HOPPER if on_hopper else PLAIN)
    for requests in (1, 11):
        found = answers(model, requests)
        assert max(ran) == requests
        if on_hopper:
            assert answers(model, requests, PLAIN) == found
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(chosen_step, "can_capture", lambda _: False)
            assert Engine(model, pages=8).decode_step == NONE
            assert answers(model, requests) == found


def test_tokens_and_logprobs_are_those_of_the_cpu() -> None:
    """In float32 the graph's answers are the list of calls' answers."""
    model = Model.new(SMALL, 3)
    assert answers(Model.new(SMALL, 3).to("cuda"), 5) == answers(model, 5)


def public(shape: str, dtype: torch.dtype) -> Model:
    return Model(config=PUBLIC[shape], weights=random_weights(PUBLIC[shape], Setting(CUDA, dtype))).for_inference()


def equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """As `same_bits` has it, without a way through main memory."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    found = left.view(kind) == right.view(kind)
    return bool((found | (left.isnan() & right.isnan())).all())


def tables_of(rows: int, most: int, seed: int) -> list[list[int]]:
    """Pages of each request, dealt at random."""
    found: list[list[int]] = (
        torch.randperm(rows * most, generator=torch.Generator().manual_seed(seed)).view(rows, most).tolist()
    )
    return found


def stepped(model: Model, kind: str, rows: int, keys: int) -> list[torch.Tensor]:
    """What a captured step gives time after time, and what is in the caches then: tokens grow, pages are others in the
    last ones, one request is drawn and not the likeliest, and a value of the last request is not finite."""
    config, size, most = model.config, 16, -(-keys // 16)
    generator = torch.Generator("cuda").manual_seed(rows)
    sizes = (rows * most, size, model.key_heads, config.head_dim)
    caches = [LayerCache(*sizes, dtype=model.dtype, device=model.device) for _ in range(config.num_hidden_layers)]
    kept = [each for cache in caches for each in (cache.k, cache.v)]
    for each in kept:
        each.normal_(generator=generator)
    if rows > 1:
        kept[1][tables_of(rows, most, rows)[-1][0], 1, 0, 3] = torch.nan
    step = step_type(kind)(model, caches, rows, most, capturing(model.device))
    found = []
    for number in range(REPLAYS):
        tables = tables_of(rows, most, rows + (number >= REPLAYS // 2))
        held = [keys - REPLAYS - 1 if row == 0 else (97 * row + 13) % (keys - REPLAYS) for row in range(rows)]
        whole, parts = torch.zeros(4, rows, dtype=torch.int64), torch.tensor([[0.0], [1.0]]).repeat(1, rows)
        whole[1], parts[0, 0] = number, 1.0
        ids = [(37 * row + 5 * number) % config.vocab_size for row in range(rows)]
        decoded = step.run(ids, [each + number for each in held], tables, Choices(whole, parts))
        found += [each.clone() for each in decoded]
        # As an engine does before the next step: what is handed in may be written again from here on.
        torch.cuda.synchronize()
    return [*found, *kept]


STEPS = [
    ("llama", torch.bfloat16, (1, 3, 8), (300, 4500)),
    ("llama", torch.bfloat16, (16, 33), (300, 2200)),
    ("llama", torch.bfloat16, (64, 130), (300,)),
    ("llama", torch.float16, (3, 33), (300,)),
    ("smollm2", torch.float16, (1, 16), (300, 4500)),
    ("smollm2", torch.float16, (64, 130), (300, 2200)),
    ("smollm2", torch.bfloat16, (8, 33), (300,)),
]


@pytest.mark.parametrize(("shape", "dtype", "some", "lengths"), STEPS)
def test_the_step_for_hopper_has_the_bits_of_the_plain_one(
    shape: str, dtype: torch.dtype, some: tuple[int, ...], lengths: tuple[int, ...]
) -> None:
    """Everything they give, and every key and value, replay after replay; the last splits are not full."""
    model = public(shape, dtype)
    for rows in some:
        for keys in lengths:
            expected = stepped(model, PLAIN, rows, keys)
            found = stepped(model, HOPPER, rows, keys)
            assert all(map(equal, found, expected)), (rows, keys)
            rows_of_nan = expected[1].isnan().all(1).tolist()
            assert rows_of_nan == [row > 0 and row == rows - 1 for row in range(rows)]


@pytest.mark.parametrize(("shape", "dtype"), [("llama", torch.bfloat16), ("smollm2", torch.float16)])
def test_requests_that_come_and_go_have_the_bits_of_the_plain_step(shape: str, dtype: torch.dtype) -> None:
    """Rows change in both directions, one request has keys of two splits, and one is cancelled."""
    model = public(shape, dtype)
    found = {kind: coming_and_going(model, kind) for kind in (HOPPER, PLAIN)}
    assert found[HOPPER] == found[PLAIN] and len(found[PLAIN]) > 150


def coming_and_going(model: Model, kind: str) -> list[Any]:
    made = Engine(model, pages=400, batch_tokens=2300, batch_requests=24, decode_step=kind)
    assert made.decode_step == kind
    told: list[Any] = []
    for number in range(40):
        for place in range(number % 3):
            each = Request(
                prompt=tuple((7 * number + token) % 3000 for token in range(2045 if number == 1 else 5 + 9 * place)),
                max_tokens=3 + (5 * number + place) % 17,
                sampling=Sampling(seed=number, temperature=float(place)),
                number=place,
            )
            made.submit(each)
        if number == 20:
            made.cancel(12)
        told += [(event.ticket, event.token, event.logprob.hex()) for event in made.step()]
    while not made.idle:
        told += [(event.ticket, event.token, event.logprob.hex()) for event in made.step()]
    return told


def test_a_weight_that_is_swapped_is_noticed() -> None:
    """Planted: gate and up are each other's in the step for Hopper."""
    model = public("smollm2", torch.bfloat16)
    expected = stepped(model, PLAIN, 3, 300)
    for layer in model.model.layers:
        layer.mlp.joined = torch.cat(layer.mlp.joined.chunk(2)[::-1])
    assert not all(map(equal, stepped(model, HOPPER, 3, 300), expected))


@pytest.mark.parametrize("joined", [False, True])
def test_pages_that_are_not_told_are_noticed(joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the graph goes on with the pages of its first step."""
    model = Model.new(SMALL, 3).to("cuda", torch.bfloat16)
    model = model.for_inference() if joined else model
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
