"""Small transformers models of random weights, and the ways a sequence is run through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from samebits.invariant.transformers import register

VOCABULARY = 131
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "head_dim": 64,
}
KINDS: dict[str, Callable[[str], nn.Module]] = {
    "llama": lambda attention: LlamaForCausalLM(
        LlamaConfig(**SIZES, num_hidden_layers=3, tie_word_embeddings=False, attn_implementation=attention)
    ),
    "qwen3": lambda attention: Qwen3ForCausalLM(
        Qwen3Config(**SIZES, num_hidden_layers=2, tie_word_embeddings=True, attn_implementation=attention)
    ),
}
Make = Callable[..., Any]


@pytest.fixture
def make() -> Make:
    """make("llama", "samebits"): the same weights whatever the attention. Spread wide, so that sums must round."""
    register()

    def build(kind: str, attention: str = "samebits") -> nn.Module:
        torch.manual_seed(1)
        model = KINDS[kind](attention).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(6)
            else:
                parameter.data.add_(torch.randn(parameter.shape) / 3)
        return model

    return build


def ids_of(count: int, length: int, seed: int = 2) -> Tensor:
    """By numpy: invariant mode refuses torch's random numbers."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, VOCABULARY, (count, length)))


def padded(sequences: Sequence[Tensor], side: str) -> tuple[Tensor, Tensor, Tensor, list[slice]]:
    """ids, mask, positions, and where each sequence lies. The padding is noise that must not be seen."""
    width = max(len(each) for each in sequences)
    ids, mask, places = ids_of(len(sequences), width, 77), torch.zeros(len(sequences), width, dtype=torch.int64), []
    for row, each in enumerate(sequences):
        start = width - len(each) if side == "left" else 0
        places.append(slice(start, start + len(each)))
        ids[row, places[-1]], mask[row, places[-1]] = each, 1
    return ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), places


def in_parts(model: nn.Module, ids: Tensor, sizes: Sequence[int]) -> Tensor:
    """Logits of one sequence, prefilled part by part with transformers' own cache."""
    cache, parts, start = DynamicCache(config=model.config), [], 0
    for size in sizes:
        output = model(input_ids=ids[None, start : start + size], past_key_values=cache, use_cache=True)
        parts.append(output.logits[0])
        start += size
    return torch.cat(parts)
