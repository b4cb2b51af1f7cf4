"""SmolLM2-135M on real text: sources of the standard library keep their bits, their perplexity its last digit."""

from __future__ import annotations

import math
import textwrap
import this
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.invariant.conftest import in_parts, padded
from torch import Tensor, nn

from samebits.checker.model_loading import load_model
from samebits.invariant import invariant_mode
from samebits.model.huggingface import save_folder
from samebits.model.loading import Loaded, load
from samebits.numerics.bits import same_bits

TOKENS = 11
SOURCES = (textwrap, this)


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    """By samebits' own reader, whose weights tests/model/test_loading.py compares with transformers': six times as fast
    as theirs."""
    return load("smollm2")


@pytest.fixture(scope="module")
def smollm2(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    folder = tmp_path_factory.mktemp("models") / "smollm2"
    save_folder(loaded.model, folder)
    return load_model(str(folder))


@pytest.fixture(scope="module")
def texts(loaded: Loaded) -> list[Tensor]:
    """Sixteen pieces of real text, of ragged lengths, as token ids."""
    assert loaded.tokenizer is not None
    text = "\n".join(Path(str(module.__file__)).read_text() for module in SOURCES)
    ids = torch.tensor(loaded.tokenizer.encode(text[:6000]))
    return [ids[row * TOKENS : row * TOKENS + TOKENS - row % 5] for row in range(16)]


def perplexity(model: nn.Module, texts: list[Tensor], batch: int) -> float:
    """exp of the mean loss over every token of every text, in the order of the texts."""
    losses: list[Tensor] = []
    with invariant_mode(), torch.no_grad():
        for start in range(0, len(texts), batch):
            ids, mask, positions, places = padded(texts[start : start + batch], "right")
            logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
            for row, place in enumerate(places):
                chosen = torch.log_softmax(logits[row, place][:-1], -1).gather(-1, ids[row, place][1:, None])
                losses.append(-chosen[:, 0])
    return math.exp(math.fsum(torch.cat(losses).tolist()) / sum(map(len, losses)))


def test_perplexity_is_equal_to_the_last_bit(smollm2: nn.Module, texts: list[Tensor]) -> None:
    found = {batch: perplexity(smollm2, texts, batch).hex() for batch in (1, 4, 16)}
    assert len(set(found.values())) == 1, found
    assert 1.0 < float.fromhex(found[1]) < 200.0  # it is a language model that reads Python


def test_real_text_keeps_its_bits_in_every_form(smollm2: nn.Module, texts: list[Tensor]) -> None:
    """Logits: alone, padded on both sides, in chunks, token by token with transformers' own cache."""
    ids = torch.cat(texts[1:3])[:24]
    beside = [torch.cat(texts[3:6]), ids, texts[2][:9]]
    with invariant_mode(), torch.no_grad():
        alone = smollm2(input_ids=ids[None]).logits[0]
        for side in ("left", "right"):
            batch, mask, positions, places = padded(beside, side)
            logits = smollm2(input_ids=batch, attention_mask=mask, position_ids=positions).logits
            assert same_bits(logits[1, places[1]], alone)
        assert same_bits(in_parts(smollm2, ids, (7, 1, 16)), alone)
        assert same_bits(in_parts(smollm2, ids[:6], (1,) * 6), alone[:6])


def test_gradients_of_real_text_keep_their_bits(smollm2: nn.Module, texts: list[Tensor]) -> None:
    """The gradients of the input and of some weights, alone and beside others that weigh nothing."""
    ids = texts[3][:12]
    watched = [smollm2.model.layers[i].mlp.down_proj.weight for i in (0, 29)] + [smollm2.model.norm.weight]

    def gradients(batch: Tensor, row: int, place: slice, **options: Any) -> list[Tensor]:
        rows = smollm2.get_input_embeddings()(batch).detach().requires_grad_()
        logits = smollm2(inputs_embeds=rows, use_cache=False, **options).logits[row, place]
        chosen = torch.log_softmax(logits[:-1], -1).gather(-1, batch[row, place][1:, None])
        found = torch.autograd.grad(chosen.mean(), [rows, *watched])
        return [found[0][row, place], *found[1:]]

    with invariant_mode():
        alone = gradients(ids[None], 0, slice(None))
        batch, mask, positions, places = padded([torch.cat(texts[:2])[:20], ids, texts[5][:5]], "left")
        beside = gradients(batch, 1, places[1], attention_mask=mask, position_ids=positions)
    assert all(same_bits(a, b) for a, b in zip(alone, beside, strict=True))


def test_stock_torch_does_not(texts: list[Tensor], smollm2: nn.Module) -> None:
    """The negative control: the same model with torch's own attention and products."""
    ids = torch.cat(texts[1:3])[:24]
    smollm2.set_attn_implementation("sdpa")
    try:
        with torch.no_grad():
            assert not same_bits(in_parts(smollm2, ids, (7, 1, 16)), smollm2(input_ids=ids[None]).logits[0])
    finally:
        smollm2.set_attn_implementation("samebits")
