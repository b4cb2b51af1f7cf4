"""The step for Hopper beside the plain one: the same bits, layer after layer of a small model, and in the caches.

Both run on the machine in tests/ops/hopper_on_cpu, the operators by their launches for a GPU. On a GPU
tests/gpu/test_decoding.py compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tests.infer.hopper_step_on_cpu import Watch, umulhi, watched
from tests.ops.hopper_on_cpu.language import Language
from tests.ops.hopper_on_cpu.launching import launches

from samebits.infer import decode_step
from samebits.infer.decode_step import DecodeStep
from samebits.infer.drawing import Choices
from samebits.infer.hopper_step import products
from samebits.infer.hopper_step.choices import ProductLaunch
from samebits.infer.hopper_step.step import HopperStep
from samebits.infer.pages import LayerCache
from samebits.model import Model, ModelConfig
from samebits.numerics.bits import compare
from samebits.ops import backends
from samebits.ops._triton import elements
from samebits.ops.attention import triton_kernel as attention
from samebits.ops.attention import triton_uncovered
from samebits.ops.embedding import triton_kernel as embedding
from samebits.ops.matmul import triton_kernel as matmul
from samebits.ops.rmsnorm import triton_kernel as rmsnorm
from samebits.ops.rope import triton_kernel as rope

CONFIG = ModelConfig(
    vocab_size=97,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    intermediate_size=72,
    max_position_embeddings=128,
)
PAGE, PAGES = 16, 3
LAUNCHES = (matmul, elements, rmsnorm, rope, attention, triton_uncovered, embedding)
Tensors = list[torch.Tensor]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors in main memory go to launches for a GPU, and those to the machine."""
    monkeypatch.setattr(products, "multiprocessors", lambda device: 3)
    monkeypatch.setattr(Language, "umulhi", umulhi, raising=False)
    monkeypatch.setitem(backends.MODULES, "cpu", "triton_kernel")
    backends.kernel_module.cache_clear()
    # Drawing is the engine's in every step, and left out here.
    monkeypatch.setattr(decode_step, "tokens_and_logprobs", lambda *_: (torch.zeros(0), torch.zeros(0)))
    yield
    backends.kernel_module.cache_clear()


def held_by(rows: int) -> list[int]:
    return [(23 * row + 40) % (PAGE * PAGES - 1) for row in range(rows)]


def tables_of(rows: int) -> list[list[int]]:
    return [[rows * page + row for page in range(PAGES)] for row in range(rows)]


def written_by(rows: int) -> frozenset[int]:
    """Rows of the caches."""
    pairs = zip(tables_of(rows), held_by(rows), strict=True)
    return frozenset(table[held // PAGE] * PAGE + held % PAGE for table, held in pairs)


def after_a_step(made: Callable[..., DecodeStep], rows: int, config: ModelConfig) -> Tensors:
    """Hidden rows, their logits, and what is in the caches then. Keys of other requests are on the pages between."""
    model = Model.new(config, seed=1).to(torch.bfloat16).for_inference()
    torch.manual_seed(rows)
    sizes, where = (rows * PAGES, PAGE, 2, 64), {"dtype": torch.bfloat16, "device": torch.device("cpu")}
    caches = [LayerCache(*sizes, **where) for _ in range(CONFIG.num_hidden_layers)]
    kept = [each for cache in caches for each in (cache.k, cache.v)]
    for each in kept:
        each.copy_(torch.randn(each.shape))
    caches[0].v[-1, 3, 0, 2] = torch.nan
    step = made(model, caches, rows, PAGES, lambda function: SimpleNamespace(returned=function()))
    held, tables = held_by(rows), tables_of(rows)
    choices = Choices(torch.zeros(4, rows, dtype=torch.int64), torch.ones(2, rows))
    with launches(*LAUNCHES):
        decoded = step.run([13 * row % 97 for row in range(rows)], held, tables, choices)
    return [decoded.hidden, decoded.logits, *kept]


SMALL_PRODUCT = ProductLaunch(depth=64, stages=3)
LAUNCHES_OF_PRODUCTS = {"of few rows": replace(SMALL_PRODUCT, overlapped=True), "of many rows": SMALL_PRODUCT}


@pytest.mark.parametrize("norms", [False, True], ids=["Llama", "norms of heads"])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_bits_of_the_plain_step(rows: int, norms: bool) -> None:
    config = replace(CONFIG, use_qk_norm=norms, tie_word_embeddings=not norms)
    expected = after_a_step(DecodeStep, rows, config)
    for launch in LAUNCHES_OF_PRODUCTS.values():
        with watched(Watch(written=written_by(rows)), seed=rows):
            found = after_a_step(partial(HopperStep, launch=launch), rows, config)
        assert [compare(*each) for each in zip(found, expected, strict=True)] == [None] * len(expected)
    assert expected[1].isnan().any(1).tolist() == [row == rows - 1 for row in range(rows)]


def test_the_bits_of_products_that_the_kernel_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of more rows than it is for: they are the operators', between kernels that are launched programmatically."""
    expected = after_a_step(DecodeStep, 3, CONFIG)
    monkeypatch.setattr(products, "MOST_ROWS", 2)
    with watched(Watch()):
        found = after_a_step(HopperStep, 3, CONFIG)
    assert [compare(*each) for each in zip(found, expected, strict=True)] == [None] * len(expected)


def gate_and_up_swapped(step: HopperStep) -> None:
    for layer in step._model.model.layers:
        layer.mlp.joined = torch.cat(layer.mlp.joined.chunk(2)[::-1])


def position_off_by_one(step: HopperStep) -> None:
    step._batch.positions.add_(1)


FAULTS = {"gate and up are swapped": gate_and_up_swapped, "keys turn by another position": position_off_by_one}


@pytest.mark.parametrize("words", FAULTS)
def test_planted_faults_change_bits(words: str) -> None:
    class Faulty(HopperStep):
        def _hidden(self) -> torch.Tensor:
            FAULTS[words](self)
            return super()._hidden()

    expected = after_a_step(DecodeStep, 3, CONFIG)
    with watched(Watch()):
        found = after_a_step(Faulty, 3, CONFIG)
    assert any(compare(*each) is not None for each in zip(found, expected, strict=True))


def test_the_last_key_is_written_before_attention_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: it goes to another row of the cache, so that attention finds there what was before."""
    expected = after_a_step(DecodeStep, 3, CONFIG)
    places = decode_step.places
    monkeypatch.setattr(decode_step, "places", lambda *given: [place ^ 1 for place in places(*given)])
    with watched(Watch()):
        found = after_a_step(HopperStep, 3, CONFIG)
    assert compare(found[0], expected[0]) is not None
