"""The forward pass of plain torch functions: the same function as samebits' within rounding, and not the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from samebits import ops
from samebits.model import Batch, Model, ModelConfig
from samebits.numerics.bits import same_bits
from samebits.ops.attention import DenseCache, PagedCache
from samebits.ops.attention.cache import Cache
from samebits.parity import stock
from samebits.parity.stock import STOCK

LLAMA = ModelConfig(
    vocab_size=97,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=80,
    max_position_embeddings=128,
)
SHAPES = {
    "llama": LLAMA,
    "qwen3": replace(LLAMA, use_qk_norm=True, head_dim=24, rope_theta=1e6, tie_word_embeddings=False),
    "llama3 scaling": replace(
        LLAMA, rope_scaling=ops.RopeScaling(kind="llama3", factor=8, original_max_position_embeddings=64)
    ),
}
LENGTHS = (5, 33, 1, 18)
TEXTS = [
    torch.randint(0, 97, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    for seed, length in enumerate(LENGTHS)
]


def bound(model: Model, values: Tensor) -> float:
    """A rounding each time a term is added, on the way through every layer, of values that norms keep at one size."""
    config = model.config
    terms = config.num_hidden_layers * (
        3 * config.hidden_size + config.intermediate_size + config.head_dim + max(LENGTHS)
    )
    return terms * 2.0**-24 * float(values.abs().max())


def pair(shape: str) -> tuple[Model, Model]:
    model = Model.new(SHAPES[shape], 1)
    return model, replace(model, operators=STOCK)


def caches(model: Model, kind: str) -> list[Cache]:
    heads, size, count = model.config.num_key_value_heads, model.config.head_dim, len(TEXTS)
    if kind == "dense":
        return [DenseCache.empty(count, 64, heads, size) for _ in range(model.config.num_hidden_layers)]
    tables = [[n + count * page for page in range(4)] for n in range(count)]
    return [
        PagedCache.empty(tables, heads, size, pages=4 * count, page_size=16)
        for _ in range(model.config.num_hidden_layers)
    ]


def in_two_parts(model: Model, kind: str) -> list[Tensor]:
    """Some sequences decode one token while others are prefilled, all with a cache. The third has nothing left."""
    held, cuts = caches(model, kind), [4, 12, 1, 17]
    rest = [text[cut:] or [0] for text, cut in zip(TEXTS, cuts, strict=True)]
    with torch.no_grad():
        early = model.hidden(Batch.of([text[:cut] for text, cut in zip(TEXTS, cuts, strict=True)]), held)
        late = model.hidden(Batch.of(rest, starts=cuts), held)
    parts = zip(torch.split(early, cuts), torch.split(late, [len(each) for each in rest]), LENGTHS, strict=True)
    return [torch.cat(each)[:length] for *each, length in parts]


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_it_is_the_same_function(shape: str) -> None:
    model, plain = pair(shape)
    with torch.no_grad():
        one, other = model.hidden(Batch.of(TEXTS)), plain.hidden(Batch.of(TEXTS))
    assert float((one - other).abs().max()) <= bound(model, one)


@pytest.mark.parametrize("kind", ["dense", "paged"])
@pytest.mark.parametrize("shape", SHAPES)
def test_with_a_cache_it_is_the_same_function(shape: str, kind: str) -> None:
    model, plain = pair(shape)
    with torch.no_grad():
        whole = torch.split(model.hidden(Batch.of(TEXTS)), list(LENGTHS))
    for one, other in zip(whole, in_two_parts(plain, kind), strict=True):
        assert float((one - other).abs().max()) <= bound(model, one)


def test_a_mask_that_shows_the_next_key_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every query sees one key too many."""
    model, plain = pair("llama")
    right = stock._mask
    monkeypatch.setattr(stock, "_mask", lambda queries, asked, keys, held: right(queries, asked - 1, keys, held))
    with torch.no_grad():
        whole = torch.split(model.hidden(Batch.of(TEXTS)), list(LENGTHS))
    found = zip(whole, in_two_parts(plain, "paged"), strict=True)
    assert any(float((one - other).abs().max()) > bound(model, one) for one, other in found)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_trains_by_autograd(shape: str) -> None:
    model, plain = pair(shape)
    targets = torch.tensor([token for text in TEXTS for token in [*text[1:], -100]])
    sums = model.with_sums()
    plain = replace(plain, weights={name: weight.clone().requires_grad_() for name, weight in plain.weights.items()})
    for each in (sums, plain):
        each.logprobs(each.hidden(Batch.of(TEXTS)), targets).sum().backward()
    for name, gradient in sums.gradients().items():
        other = plain.weights[name].grad
        assert other is not None and bool((other != 0).any())
        # The way back is twice as long as the way there, and ends in a sum over all tokens.
        limit = 3 * bound(model, gradient) + sum(LENGTHS) * 2.0**-24 * float(gradient.abs().max())
        assert float((gradient - other).abs().max()) <= limit


def test_a_place_without_a_target_has_no_logprob() -> None:
    _, plain = pair("llama")
    with torch.no_grad():
        found = plain.logprobs(plain.hidden(Batch.of(TEXTS[:1])), torch.tensor([3, -100, 5, -100, 7]))
    assert found[[1, 3]].tolist() == [0.0, 0.0] and bool((found[[0, 2, 4]] < 0).all())


def test_its_bits_depend_on_the_batch() -> None:
    """The negative control controls: alone and packed are not the same."""
    plain = replace(Model.new(replace(LLAMA, hidden_size=256, intermediate_size=512), 1), operators=STOCK)
    with torch.no_grad():
        packed = torch.split(plain.hidden(Batch.of(TEXTS)), list(LENGTHS))
        alone = [plain.hidden(Batch.of([text])) for text in TEXTS]
    assert not all(same_bits(one, other) for one, other in zip(alone, packed, strict=True))
