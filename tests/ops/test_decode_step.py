"""Layers of a small model by the launches of benchmarks/decode_step, beside the engine's own: the same bits.

Both run on the machine in hopper_on_cpu/, the operators by their launches for a GPU. On a GPU
benchmarks/gpu_decode_step.py compares whole passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.ops.decode_step_on_cpu import Watch, umulhi, watched
from tests.ops.hopper_on_cpu.language import Language
from tests.ops.hopper_on_cpu.launching import launches
from tests.repository.documents import PROJECT

from samebits.infer.drawing import Choices
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
    head_dim=16,
    intermediate_size=72,
    max_position_embeddings=128,
)
PAGE, PAGES = 16, 3
LAUNCHES = (matmul, elements, rmsnorm, rope, attention, triton_uncovered, embedding)
Tensors = list[torch.Tensor]


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module; tensors in main memory go to launches for a GPU, and those to the machine."""
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import decode_step.products
    import decode_step.step

    monkeypatch.setattr(decode_step.products, "multiprocessors", lambda device: 3)
    monkeypatch.setattr(Language, "umulhi", umulhi, raising=False)
    monkeypatch.setitem(backends.MODULES, "cpu", "triton_kernel")
    backends.kernel_module.cache_clear()
    # Drawing is the engine's in every step, and left out here.
    monkeypatch.setattr(decode_step.step, "tokens_and_logprobs", lambda *_: (torch.zeros(0), torch.zeros(0)))
    yield decode_step.step
    backends.kernel_module.cache_clear()


def after_a_step(step: Any, rows: int, ideas: Any) -> Tensors:
    """Hidden rows, their logits, and what is in the caches then. Keys of other requests are on the pages between."""
    model = Model.new(CONFIG, seed=1).to(torch.bfloat16).for_inference()
    torch.manual_seed(rows)
    sizes, where = (rows * PAGES, PAGE, 2, 16), {"dtype": torch.bfloat16, "device": torch.device("cpu")}
    caches = [LayerCache(*sizes, **where) for _ in range(CONFIG.num_hidden_layers)]
    kept = [each for cache in caches for each in (cache.k, cache.v)]
    for each in kept:
        each.copy_(torch.randn(each.shape))
    caches[0].v[-1, 3, 0, 2] = torch.nan
    made = step.JoinedStep(model, caches, rows, PAGES, lambda function: SimpleNamespace(returned=function()), ideas)
    held = [(23 * row + 40) % (PAGE * PAGES - 1) for row in range(rows)]
    tables = [[rows * page + row for page in range(PAGES)] for row in range(rows)]
    choices = Choices(torch.zeros(4, rows, dtype=torch.int64), torch.ones(2, rows))
    with launches(*LAUNCHES):
        decoded = made.run([13 * row % 97 for row in range(rows)], held, tables, choices)
    return [decoded.hidden, decoded.logits, *kept]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_step_by_all_ideas_has_the_bits_of_the_engines(step: Any, rows: int) -> None:
    expected = after_a_step(step, rows, step.ENGINE)
    every = step.Ideas(rotation=True, unfilled=True, form=step.Form(depth=64, stages=2), programmatic=True)
    for ideas in (every, replace(every, form=None), replace(every, programmatic=False, unfilled=False)):
        with watched(Watch(), seed=rows):
            found = after_a_step(step, rows, ideas)
        assert [compare(*each) for each in zip(found, expected, strict=True)] == [None] * len(expected)
    assert expected[1].isnan().any(1).tolist() == [row == rows - 1 for row in range(rows)]
