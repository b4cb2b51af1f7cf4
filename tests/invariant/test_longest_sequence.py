"""Rotations that follow the longest sequence of a batch: kept up to where they begin to, refused from there on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.invariant.conftest import SIZES, ids_of
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from samebits.invariant import InvariantError, invariant_mode
from samebits.numerics.bits import same_bits

ORIGINAL = 16
"""The length up to which nothing is stretched."""
HALF = SIZES["head_dim"] // 2
STRETCHED = {
    "longrope": {"short_factor": [1.0] * HALF, "long_factor": [1.0 + place / 8 for place in range(HALF)]},
    "dynamic": {},
}


def model(kind: str, **more: Any) -> LlamaForCausalLM:
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": ORIGINAL}
    config = LlamaConfig(
        **{**SIZES, "max_position_embeddings": ORIGINAL}, num_hidden_layers=1, rope_parameters={**rope, **more}
    )
    torch.manual_seed(1)
    return LlamaForCausalLM(config).eval()


def beside(llama: LlamaForCausalLM, longest: int) -> tuple[Tensor, Tensor]:
    """Logits of 9 tokens alone, and beside a sequence of that length."""
    ids = ids_of(2, longest)
    with torch.no_grad():
        alone: Tensor = llama(input_ids=ids[:1, :9]).logits[0]
        together: Tensor = llama(input_ids=ids).logits[0, :9]
    return alone, together


@pytest.mark.parametrize("kind", STRETCHED)
def test_what_is_not_stretched_is_kept(kind: str) -> None:
    llama = model(kind, **STRETCHED[kind])
    with invariant_mode():
        assert same_bits(*beside(llama, ORIGINAL))


def test_a_longer_neighbour_changes_the_models_own_numbers_and_is_refused() -> None:
    llama = model("longrope", **STRETCHED["longrope"])
    with invariant_mode(strict=False) as mode:
        assert not same_bits(*beside(llama, ORIGINAL + 1))
    assert mode.unverified["LlamaRotaryEmbedding"] == 1
    with invariant_mode(), pytest.raises(InvariantError, match="'longrope' and saw a sequence longer"):
        beside(llama, ORIGINAL + 1)


def test_what_grew_before_the_block_is_refused_in_it() -> None:
    """What a row gives would depend on what the model was called with before."""
    llama = model("dynamic")
    beside(llama, 2 * ORIGINAL)
    with invariant_mode(), pytest.raises(InvariantError, match="'dynamic' and saw a sequence longer"):
        llama(input_ids=ids_of(1, ORIGINAL))
    with invariant_mode():
        assert same_bits(*beside(llama, ORIGINAL))
