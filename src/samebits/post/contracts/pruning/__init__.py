"""Pruning as its contract asks for it: one weight by WANDA, with what flows into it, and a whole model by magnitude."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from samebits.model import Model, ModelConfig
from samebits.model.loading import Loaded
from samebits.model.tokenizer import Tokenizer
from samebits.model.weights import shapes
from samebits.post.pruning import Job, thin
from samebits.post.sparsity import pruned

SMALL = ModelConfig(
    vocab_size=20,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=12,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
SIZES = {name: math.prod(shape) for name, shape in shapes(SMALL).items()}


def pruned_weight(weight: Tensor, squares: Tensor, share: Tensor) -> Tensor:
    """(N, K): of each row the least scores are zero; `share` is one number."""
    return pruned(weight, sparsity=float(share[0]), squares=squares)


def cut(weights: Tensor) -> dict[str, Tensor]:
    """The tensors of the small model by name, out of one that has them end to end."""
    pieces = torch.split(weights, list(SIZES.values()))
    return {name: piece.reshape(shape) for (name, shape), piece in zip(shapes(SMALL).items(), pieces, strict=True)}


@cache
def _words() -> Tokenizer:
    return Tokenizer.of_bytes()


def pruned_model(weights: Tensor, share: Tensor, *, kind: type[Job] = Job) -> Tensor:
    """All weights of the small model end to end, as its pruned folder would hold them; a row is the whole model."""
    rows = []
    for row in weights:
        loaded = Loaded(model=Model(config=SMALL, weights=cut(row)), tokenizer=_words())
        job = kind(source="small", loaded=loaded, method="magnitude", sparsity=float(share[0]))
        rows.append(torch.cat([thin(job, name).reshape(-1) for name in SIZES]))
    return torch.stack(rows)
