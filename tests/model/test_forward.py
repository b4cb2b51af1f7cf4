"""One forward pass: alone, packed, padded, in chunks and token by token with a cache, a token's bits are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from samebits import ops
from samebits.model import Batch, Model, ModelConfig
from samebits.nn.strategy import Operators
from samebits.ops.attention import DenseCache, PagedCache
from samebits.ops.attention.cache import Cache
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
    "llama tied": LLAMA,
    "llama untied": replace(LLAMA, tie_word_embeddings=False),
    "qwen3": replace(LLAMA, use_qk_norm=True, head_dim=24, rope_theta=1e6),
    "llama3 scaling": replace(
        LLAMA, rope_scaling=ops.RopeScaling(kind="llama3", factor=8, original_max_position_embeddings=64)
    ),
}
LENGTHS = (5, 33, 1, 18)


def text(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 97, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


TEXTS = [text(length, seed) for seed, length in enumerate(LENGTHS)]


def bits(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.int32)


def caches(model: Model, kind: str, sequences: int) -> list[Cache]:
    heads, size = model.config.num_key_value_heads, model.config.head_dim
    if kind == "dense":
        return [DenseCache.empty(sequences, 64, heads, size) for _ in range(model.config.num_hidden_layers)]
    # Pages of neighbours lie far from one another.
    tables = [[n + sequences * page for page in range(4)] for n in range(sequences)]
    made = range(model.config.num_hidden_layers)
    return [PagedCache.empty(tables, heads, size, pages=4 * sequences, page_size=16) for _ in made]


def alone(model: Model) -> list[Tensor]:
    with torch.no_grad():
        return [model.hidden(Batch.of([each])) for each in TEXTS]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sequence_alone_and_packed_is_the_same(shape: str) -> None:
    model = Model.new(SHAPES[shape], 1)
    with torch.no_grad():
        packed = model.hidden(Batch.of(TEXTS)).split(list(LENGTHS))
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(alone(model), packed, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_end_to_end_change_nothing(shape: str) -> None:
    model = Model.new(SHAPES[shape], 1)
    joined = model.for_inference()
    assert set(joined.weights) == set(model.weights) and len(joined.joined) == 2 * model.config.num_hidden_layers
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(alone(model), alone(joined), strict=True))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side: str) -> None:
    model, longest = Model.new(LLAMA, 1), max(LENGTHS)
    rows = [
        [0] * (longest - len(each)) + each if side == "left" else each + [0] * (longest - len(each)) for each in TEXTS
    ]
    batch = Batch.of_padded(torch.tensor(rows), LENGTHS, side)
    with torch.no_grad():
        padded = batch.to_padded(model.hidden(batch), side)
    for row, (one, length) in enumerate(zip(alone(model), LENGTHS, strict=True)):
        real = padded[row, longest - length :] if side == "left" else padded[row, :length]
        assert torch.equal(bits(one), bits(real))


@pytest.mark.parametrize("kind", ["dense", "paged"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", [1, 7])
def test_chunks_and_decoding_with_a_cache_are_the_whole(shape: str, kind: str, step: int) -> None:
    model = Model.new(SHAPES[shape], 1)
    whole = alone(model)
    for n, one in enumerate(whole):
        own = caches(model, kind, 1)
        pieces = []
        with torch.no_grad():
            for start in range(0, LENGTHS[n], step):
                pieces.append(model.hidden(Batch.of([TEXTS[n][start : start + step]], starts=[start]), own))
        assert torch.equal(bits(torch.cat(pieces)), bits(one))


def test_prefill_and_decode_share_a_batch() -> None:
    """One sequence decodes its last token while another is prefilled: as in an engine."""
    model = Model.new(LLAMA, 1)
    whole, both = alone(model), caches(model, "paged", 2)
    with torch.no_grad():
        model.hidden(Batch.of([TEXTS[1][:-1], TEXTS[3][:4]]), both)
        late = model.hidden(Batch.of([TEXTS[1][-1:], TEXTS[3][4:]], starts=[32, 4]), both)
    assert torch.equal(bits(late[:1]), bits(whole[1][-1:]))
    assert torch.equal(bits(late[1:]), bits(whole[3][4:]))


def gradients(model: Model, cuts: list[list[list[int]]]) -> dict[str, Tensor]:
    model = model.with_sums()
    for sequences in cuts:
        batch = Batch.of([each[:-1] for each in sequences])
        targets = torch.tensor([token for each in sequences for token in each[1:]])
        logprobs = model.logprobs(model.hidden(batch), targets)
        torch.autograd.backward(logprobs, torch.full_like(logprobs, -0.125))
    return model.gradients()


@pytest.mark.parametrize("shape", SHAPES)
def test_any_cut_into_micro_batches_gives_the_same_gradients(shape: str) -> None:
    model, several = Model.new(SHAPES[shape], 1), [TEXTS[0], TEXTS[1], TEXTS[3]]
    whole = gradients(model, [several])
    assert set(whole) == set(model.weights) and all(bool((each != 0).any()) for each in whole.values())
    for cut in ([[each] for each in several], [several[:2], several[2:]]):
        apart = gradients(model, cut)
        assert all(torch.equal(bits(whole[name]), bits(apart[name])) for name in whole)


def test_gradients_added_up_afterwards_would_differ() -> None:
    """Planted: each micro-batch by itself, then a sum."""
    model, several = Model.new(LLAMA, 1), [TEXTS[0], TEXTS[1], TEXTS[3]]
    whole = gradients(model, [several])
    parts = [gradients(model, [[each]]) for each in several]
    added = {name: sum(part[name] for part in parts[1:]) + parts[0][name] for name in whole}
    assert any(not torch.equal(bits(whole[name]), bits(added[name])) for name in whole)


def test_an_operator_that_looks_at_its_batch_is_noticed() -> None:
    """Planted: stock torch's product, which picks its order by the number of rows."""
    wide = replace(LLAMA, hidden_size=256, intermediate_size=512)
    model = replace(Model.new(wide, 1), operators=Operators(linear=STOCK.linear))
    with torch.no_grad():
        packed = model.hidden(Batch.of(TEXTS)).split(list(LENGTHS))
    assert any(not torch.equal(bits(one), bits(other)) for one, other in zip(alone(model), packed, strict=True))


def test_weights_that_do_not_fit_the_config_are_refused() -> None:
    model = Model.new(LLAMA, 1)
    with pytest.raises(ValueError, match=r"model.norm.weight has shape \(7,\), config.json gives \(48,\)"):
        Model(config=LLAMA, weights=model.weights | {"model.norm.weight": torch.ones(7)})
    with pytest.raises(ValueError, match=r"lm_head.weight has shape \(97, 48\), config.json gives None"):
        Model(config=LLAMA, weights=model.weights | {"lm_head.weight": torch.ones(97, 48)})


def test_first_weights_are_a_function_of_seed_and_name() -> None:
    one, other, deeper = (
        Model.new(c, s).weights for c, s in ((LLAMA, 1), (LLAMA, 2), (replace(LLAMA, num_hidden_layers=3), 1))
    )
    assert all(
        torch.equal(bits(one[name]), bits(deeper[name]))
        for name in one
        if not name.endswith(("o_proj.weight", "down_proj.weight"))
    )
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
