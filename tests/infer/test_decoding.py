"""Steps that only decode, on memory that stays: the bits of the model's forward pass, for every shape and number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.infer.load import SMALL

from samebits.infer import Engine, Request, Sampling, decoding, engine
from samebits.infer.decoding import Decoding
from samebits.model import Config, Model
from samebits.model.model import Operators
from samebits.ops._cpu import launches
from samebits.ops.rope import RopeScaling
from samebits.parity.stock import STOCK

SHAPES: dict[str, Config] = {
    "plain": SMALL,
    "norms of heads": replace(SMALL, norms_of_heads=True, tied=False),
    "scaled turns": replace(SMALL, scaling=RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=32)),
    "one layer": replace(SMALL, layers=1),
}
LENGTHS = (3, 40, 1, 17, 16)


@contextmanager
def without_decoding() -> Iterator[None]:
    """Engines that are made within go through the model for every step."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "can_decode", lambda _: False)
        yield


def model_of(shape: str, dtype: torch.dtype, joined: bool) -> Model:
    model = Model.new(SHAPES[shape], 3).to(dtype=dtype)
    return model.for_inference() if joined else model


def answers(model: Model, requests: int, temperature: float = 1.0) -> list[Any]:
    """Of requests that end one after another, so that steps have every number of them."""
    asked = [
        Request(
            prompt=tuple((7 * number + place) % 200 for place in range(LENGTHS[number % len(LENGTHS)])),
            max_tokens=6 + 3 * number,
            sampling=Sampling(seed=number, temperature=temperature),
        )
        for number in range(requests)
    ]
    made = Engine(model, pages=40, batch_tokens=64, batch_requests=8)
    return [(each.tokens, [value.hex() for value in each.logprobs]) for each in made.generate(asked)]


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_decoding_has_the_bits_of_the_model(shape: str, dtype: torch.dtype, joined: bool) -> None:
    model = model_of(shape, dtype, joined)
    for requests in (1, 5):
        before = launches()["matmul", None]
        found = answers(model, requests)
        assert launches()["matmul", None] > before
        with without_decoding():
            assert answers(model, requests) == found


def test_weights_that_are_updated_in_place_are_seen() -> None:
    """Its calls hold addresses: what lies there is read anew in each step."""
    model = model_of("plain", torch.float32, joined=False)
    made = Engine(model, pages=8)
    asked = [Request(prompt=(1, 2, 3), max_tokens=5)]
    first = made.generate(asked)[0].logprobs
    with torch.no_grad():
        model.weights["model.layers.0.mlp.up_proj.weight"].mul_(1.5)
    again = made.generate(asked)[0].logprobs
    assert first != again == Engine(model, pages=8).generate(asked)[0].logprobs


def test_weights_that_take_the_place_of_others_are_seen() -> None:
    model = model_of("plain", torch.float32, joined=False)
    made = Engine(model, pages=8)
    asked = [Request(prompt=(1, 2, 3), max_tokens=5)]
    first = made.generate(asked)[0].logprobs
    name = "model.layers.0.mlp.up_proj.weight"
    model.weights[name] = model.weights[name] * 1.5
    again = made.generate(asked)[0].logprobs
    assert first != again == Engine(model, pages=8).generate(asked)[0].logprobs


def test_another_model_is_seen() -> None:
    model, other = (Model.new(SMALL, seed) for seed in (3, 4))
    made = Engine(model, pages=8)
    asked = [Request(prompt=(1, 2, 3), max_tokens=5)]
    first = made.generate(asked)[0].logprobs
    made.use(other)
    again = made.generate(asked)[0].logprobs
    assert first != again == Engine(other, pages=8).generate(asked)[0].logprobs


def test_a_weight_that_is_not_dense_goes_through_the_model() -> None:
    model = model_of("plain", torch.float32, joined=False)
    wanted = answers(model, 1)
    name = "model.layers.0.mlp.up_proj.weight"
    model.weights[name] = model.weights[name].T.contiguous().T
    assert not decoding.can_decode(Engine(model, pages=8).model)
    assert answers(model, 1) == wanted


def test_operators_of_others_and_parts_of_weights_go_through_the_model() -> None:
    model = model_of("plain", torch.float32, joined=True)
    assert decoding.can_decode(Engine(model, pages=8).model)
    for operators in (STOCK, Operators(swiglu=STOCK.swiglu)):
        assert not decoding.can_decode(Engine(replace(model, operators=operators), pages=8).model)


right_turn, right_norm = Decoding._turn, Decoding._added_norm


def misled(call: Any, address: torch.Tensor, wrong: torch.Tensor) -> Any:
    """The same call with another tensor in place of one."""
    function, arguments = call
    return function, tuple(wrong.data_ptr() if each == address.data_ptr() else each for each in arguments)


def turned_one_further(self: Decoding, *arguments: Any) -> Any:
    """Planted: every position is one too large."""
    return misled(right_turn(self, *arguments), self._positions, self._lengths)


def with_another_branch(self: Decoding, *arguments: Any) -> Any:
    """Planted: what joins the stream is the normed stream and not the branch."""
    return misled(right_norm(self, *arguments), self._branch, self._normed)


def test_turns_by_a_wrong_position_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("plain", torch.float32, joined=True)
    wanted = answers(model, 5)
    monkeypatch.setattr(Decoding, "_turn", turned_one_further)
    assert answers(model, 5) != wanted


def test_a_stream_with_another_branch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("plain", torch.float32, joined=True)
    wanted = answers(model, 1)
    monkeypatch.setattr(Decoding, "_added_norm", with_another_branch)
    assert answers(model, 1) != wanted


def test_keys_in_a_wrong_page_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every new key is written into the first page of its table."""
    model = model_of("plain", torch.float32, joined=True)
    wanted = answers(model, 2)

    def places(table: Any, first: int, stop: int, size: int) -> list[int]:
        return [table[0] * size + key % size for key in range(first, stop)]

    monkeypatch.setattr(decoding, "places", places)
    assert answers(model, 2) != wanted
