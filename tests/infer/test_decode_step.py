"""Steps that only decode, captured from the model's forward pass: its bits, for every shape and number of requests."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.infer.load import SMALL

from samebits.infer import Engine, Request, Sampling, chosen_step, decode_step
from samebits.infer.decode_step import Decoded, DecodeStep
from samebits.infer.drawing import Choices
from samebits.infer.pages import LayerCache
from samebits.model import Model, ModelConfig
from samebits.nn.strategy import Operators
from samebits.numerics.bits import same_bits
from samebits.ops import capture
from samebits.ops._cpu import launches
from samebits.ops.capture import Arena, Capture
from samebits.ops.rope import RopeScaling
from samebits.parity.stock import STOCK

SHAPES: dict[str, ModelConfig] = {
    "plain": SMALL,
    "norms of heads": replace(SMALL, use_qk_norm=True, tie_word_embeddings=False),
    "scaled turns": replace(
        SMALL, rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=32)
    ),
    "one layer": replace(SMALL, num_hidden_layers=1),
}
LENGTHS = (3, 40, 1, 17, 16)


@contextmanager
def without_decoding() -> Iterator[None]:
    """Engines that are made within go through the model for every step."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chosen_step, "can_capture", lambda _: False)
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


def step_of(model: Model, inputs: Any = None) -> DecodeStep:
    """A step of two requests, which has been made once if inputs are given."""
    config = model.config
    sizes = (4, 16, config.num_key_value_heads, config.head_dim)
    made = [LayerCache(*sizes, dtype=model.dtype, device=model.device) for _ in range(config.num_hidden_layers)]
    step = DecodeStep(model, made, 2, 4, decode_step.capturing(model.device))
    if inputs is not None:
        step.run(*inputs)
    return step


def captured(step: DecodeStep) -> Capture[Any]:
    assert isinstance(step._captured, Capture)
    return step._captured


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


@pytest.mark.parametrize(
    ("most", "limit", "capacity"),
    [(1, 99999, 2048), (2048, 99999, 2048), (2049, 99999, 4096), (9000, 99999, 16384), (9000, 9500, 9500), (5, 40, 40)],
)
def test_a_step_holds_what_requests_have(most: int, limit: int, capacity: int) -> None:
    assert decode_step.captured_keys(most, limit) == capacity


def test_a_request_that_outgrows_its_room_keeps_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of its own for each capacity, doubled; planted: a capacity too small is noticed, not read beyond."""
    model = model_of("plain", torch.float32, joined=True)
    wanted = answers(model, 5)
    capacities = set()

    def seen(*arguments: Any) -> DecodeStep:
        capacities.add(arguments[3])
        return DecodeStep(*arguments)

    monkeypatch.setattr(chosen_step, "step_type", lambda _: seen)
    monkeypatch.setattr(decode_step, "LEAST_CAPACITY", 16)
    assert answers(model, 5) == wanted and capacities == {2, 4}
    monkeypatch.setattr(chosen_step, "captured_keys", lambda most, limit: 16)
    with pytest.raises(ValueError, match="a request has 42 keys; allowed: up to 16"):
        answers(model, 5)


def test_weights_that_are_updated_in_place_are_seen() -> None:
    """A captured call holds addresses: what is there is read anew in each step."""
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


@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight"])
def test_a_weight_that_is_not_dense_has_the_same_bits(name: str) -> None:
    """A kernel that needs it dense makes a copy of its own, which is captured with the rest."""
    model = model_of("plain", torch.float32, joined=False)
    wanted = answers(model, 2)
    model.weights[name] = model.weights[name].T.contiguous().T
    assert answers(model, 2) == wanted


def test_a_captured_step_outlives_the_model_that_it_was_captured_from() -> None:
    """Its calls hold addresses, and it holds what is there."""
    step = step_of(model_of("plain", torch.float32, joined=True))
    wanted = step.run(*FIRST)[0].clone()
    step._model = None  # type: ignore[assignment]
    gc.collect()
    # Memory that was given back would be written here.
    filler = [torch.full((size,), float("nan")) for size in (48, 211 * 48, 4096) for _ in range(200)]
    assert same_bits(step.run(*FIRST)[0], wanted) and len(filler) == 600


def test_operators_of_others_and_parts_of_weights_go_through_the_model() -> None:
    model = model_of("plain", torch.float32, joined=True)
    assert decode_step.can_capture(Engine(model, pages=8).model)
    for operators in (STOCK, Operators(swiglu=STOCK.swiglu)):
        assert not decode_step.can_capture(Engine(replace(model, operators=operators), pages=8).model)


def misled(step: DecodeStep, kernel: str, wrong: Any) -> None:
    """Planted: the calls of one kernel in a captured step get other arguments."""
    found = captured(step)
    calls = found._calls
    changed = [replace(each, arguments=wrong(each.arguments)) if each.kernel[0] == kernel else each for each in calls]
    assert changed != calls
    step._captured = Capture(changed, found._alive, found.returned)


def greedy(place: int) -> Choices:
    return Choices(torch.tensor([[0, 1], [place, place], [0, 0], [0, 0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))


FIRST, SECOND = ([5, 7], [0, 0], [[1], [3]], greedy(1)), ([6, 8], [1, 1], [[1], [3]], greedy(2))


def _joined(decoded: Decoded) -> torch.Tensor:
    """Everything that a step gives, token numbers as floats."""
    return torch.cat([each.reshape(2, -1).float() for each in decoded], dim=1)


def second_step(model: Model, plant: Callable[[DecodeStep], None] = lambda _: None) -> torch.Tensor:
    """What a replayed step gives, with a fault planted after the first, which was captured."""
    step = step_of(model)
    step.run(*FIRST)
    plant(step)
    return _joined(step.run(*SECOND))


def test_rotation_by_a_wrong_position_is_noticed() -> None:
    def one_further(step: DecodeStep) -> None:
        right, wrong = step._batch.positions.data_ptr(), step._tables.spread.length.data_ptr()
        misled(step, "rope_rotate", lambda given: tuple(wrong if each == right else each for each in given))

    model = model_of("plain", torch.float32, joined=True)
    assert not same_bits(second_step(model, one_further), second_step(model))


def test_a_residual_without_its_branch_is_noticed() -> None:
    def another_branch(step: DecodeStep) -> None:
        # The sixth argument is what joins the stream, the fourth the stream.
        misled(step, "rmsnorm_forward", lambda given: (*given[:5], given[5] and given[3], *given[6:]))

    model = model_of("plain", torch.float32, joined=True)
    assert not same_bits(second_step(model, another_branch), second_step(model))


def test_a_call_that_is_left_out_is_noticed() -> None:
    """Planted: one call of a captured step, each in turn, is not made again."""
    model = model_of("one layer", torch.float32, joined=True)
    wanted, seen = second_step(model), []

    def left_out(step: DecodeStep) -> None:
        found = captured(step)
        seen.append(found._calls[len(seen)])
        step._captured = Capture([each for each in found._calls if each is not seen[-1]], found._alive, found.returned)

    for _ in range(len(captured(step_of(model, FIRST))._calls)):
        noticed = not same_bits(second_step(model, left_out), wanted)
        # What a kernel overwrites whole need not be filled before.
        assert noticed or seen[-1].function in (capture._put_back, torch.ops.aten.fill_.Scalar), seen[-1]
    assert sum(each.function is None for each in seen) == 19


def test_memory_that_is_given_out_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the arena does not see that a view still uses a block."""
    model = model_of("norms of heads", torch.float32, joined=True)
    wanted = second_step(model)

    def hold(self: Arena, tensor: torch.Tensor) -> torch.Tensor:
        self._holders[tensor.untyped_storage().data_ptr()] = 1
        self._let_go(tensor.untyped_storage().data_ptr())
        return tensor

    monkeypatch.setattr(Arena, "hold", hold)
    assert not same_bits(second_step(model), wanted)


def test_keys_in_a_wrong_page_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every new key is written into the first page of its table."""
    model = model_of("plain", torch.float32, joined=True)
    wanted = answers(model, 2)

    def places(table: Any, first: int, stop: int, size: int) -> list[int]:
        return [table[0] * size + key % size for key in range(first, stop)]

    monkeypatch.setattr(decode_step, "places", places)
    assert answers(model, 2) != wanted
