"""The weights of a decoder by name and shape, and their first values, a function of the seed alone.

Names are those of Hugging Face's files, so that nothing is renamed on the way in or out."""

from __future__ import annotations

import hashlib
import math
from typing import Final

import torch
from torch import Tensor

from samebits.model.config import ModelConfig
from samebits.numerics.recipes import make

EMBEDDING: Final = "model.embed_tokens.weight"
FINAL_NORM: Final = "model.norm.weight"
HEAD: Final = "lm_head.weight"
# The standard deviation of numbers made by the recipe "normal": four uniform numbers of width 2, added.
SPREAD: Final = math.sqrt(4 / 3)
DEVIATION: Final = 0.02


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight, in the order in which they are kept, normed and updated."""
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_hidden_layers):
        found |= {
            f"{prefix(layer)}{name}": shape
            for name, shape in {
                "input_layernorm.weight": (config.hidden_size,),
                "self_attn.q_proj.weight": (query, config.hidden_size),
                "self_attn.k_proj.weight": (key, config.hidden_size),
                "self_attn.v_proj.weight": (key, config.hidden_size),
                **(
                    {f"self_attn.{each}_norm.weight": (config.head_dim,) for each in "qk"} if config.use_qk_norm else {}
                ),
                "self_attn.o_proj.weight": (config.hidden_size, query),
                "post_attention_layernorm.weight": (config.hidden_size,),
                "mlp.gate_proj.weight": (config.intermediate_size, config.hidden_size),
                "mlp.up_proj.weight": (config.intermediate_size, config.hidden_size),
                "mlp.down_proj.weight": (config.hidden_size, config.intermediate_size),
            }.items()
        }
    found[FINAL_NORM] = (config.hidden_size,)
    return found if config.tie_word_embeddings else found | {HEAD: (config.vocab_size, config.hidden_size)}


def prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def count(config: ModelConfig) -> int:
    """Numbers in all weights."""
    return sum(math.prod(shape) for shape in shapes(config).values())


def initial(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """float32 weights before the first step: norms of one, all else bell-shaped; what writes into the residual stream
    is smaller by the root of how often that happens.

    Each tensor has numbers of its own, drawn by its name, so that one more layer does not change the others."""
    inward = DEVIATION / math.sqrt(2 * config.num_hidden_layers)
    weights = {}
    for name, shape in shapes(config).items():
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
            continue
        deviation = inward if name.endswith(("o_proj.weight", "down_proj.weight")) else DEVIATION
        stream = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:4]) % (2**31 - 1)
        weights[name] = torch.from_numpy(make("normal", shape, stream)) * (deviation / SPREAD)
    return weights
