"""Some sequences computed in steps: a prompt in chunks, then token by token, with keys and values in a cache.

Knows no scheduler; how many tokens come at each step is handed in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from samebits.model import Batch, Model
from samebits.model.contracts.small_model import model_of
from samebits.ops.attention.cache import Cache, PagedCache

PAGE_SIZE = 16


def paged(model: Model, sequences: int, tokens: int) -> list[Cache]:
    """A cache a layer; pages of different sequences in turn, so that none is where a dense one would have it."""
    each = -(-tokens // PAGE_SIZE)
    tables = [[n + sequences * page for page in range(each)] for n in range(sequences)]
    heads, size = model.config.num_key_value_heads, model.config.head_dim
    return [
        PagedCache.empty(
            tables, heads, size, pages=sequences * each, page_size=PAGE_SIZE, device=model.device, dtype=model.dtype
        )
        for _ in range(model.config.num_hidden_layers)
    ]


def decoded(
    ids: Tensor,
    steps: Tensor,
    weights: Tensor,
    *,
    caches: Callable[[Model, int, int], list[Cache]] = paged,
    late: int = 0,
) -> Tensor:
    """float32 (B, S, vocabulary): logits of every token, `steps[i]` tokens of every sequence at step i.

    `late`, for planted faults: how far behind its place a token is taken to be, from the second step on."""
    model, (sequences, tokens) = model_of(weights), ids.shape
    kept, done, found = caches(model, sequences, tokens), 0, []
    for count in steps.tolist():
        rows = list(ids[:, done : done + count])
        starts = [done - (late if done else 0)] * sequences
        hidden = model.hidden(Batch.of(rows, starts=starts, device=ids.device), kept)
        found.append(model.logits(hidden).reshape(sequences, count, -1))
        done += count
    return torch.cat(found, 1)
