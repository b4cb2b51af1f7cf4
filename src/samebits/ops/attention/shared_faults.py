"""Planted faults of shared key heads and of caches: each breaks what the contract says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from samebits.ops.attention import DenseCache, attention
from samebits.ops.attention.cache import PAGE_MULTIPLE
from samebits.ops.attention.check import held_bytes


def _plain(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    assert isinstance(out, Tensor)
    return out


def _with_heads(q: Tensor, k: Tensor, v: Tensor, chosen: Callable[[int], int], options: dict[str, Any]) -> Tensor:
    """Query head h reads key head chosen(h)."""
    heads = [chosen(h) for h in range(q.shape[2])]
    return _plain(q, k[:, :, heads], v[:, :, heads], **options)


def heads_by_remainder(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks shared heads: head h reads key head h mod K."""
    return _with_heads(q, k, v, lambda h: h % k.shape[2], options)


def always_the_first_key_head(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks shared heads: every head reads the first."""
    return _with_heads(q, k, v, lambda h: 0, options)


def groups_too_small(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks shared heads: a group is one head short, and the index is held at the last."""
    group = max(1, q.shape[2] // k.shape[2] - 1)
    return _with_heads(q, k, v, lambda h: min(h // group, k.shape[2] - 1), options)


def one_key_head_for_one_query_head(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks shared heads: a single key head is not spread over the query heads."""
    out = _plain(q, k, v, **options)
    if k.shape[2] > 1:
        return out
    return torch.cat([out[:, :, :1], torch.zeros_like(out[:, :, 1:])], 2)


def takes_any_number_of_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks the refusal: key heads that do not divide the query heads are shared out all the same."""
    if q.shape[2] % k.shape[2]:
        return _with_heads(q, k, v, lambda h: h * k.shape[2] // q.shape[2], options)
    return _plain(q, k, v, **options)


def changes_an_entry(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks cache: once a key has been followed by another, its value has moved."""
    cache = options.get("cache")
    if isinstance(cache, DenseCache) and cache.lengths[0] == 1:
        cache.v[:, 0] += 1
    return _plain(q, k, v, **options)


def positions_restart_in_decode(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks cache: a query against a cache stands at the first position again and sees the first key only."""
    cache = options.get("cache")
    if not isinstance(cache, DenseCache) or q.shape[1] > 1:
        return _plain(q, k, v, **options)
    cache.append(k, v)
    return _plain(q, cache.k[:, :1], cache.v[:, :1])


def reuses_a_stale_slot(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks cache: the newest slot still holds the key before it."""
    cache = options.get("cache")
    if not isinstance(cache, DenseCache):
        return _plain(q, k, v, **options)
    cache.append(k, v)
    held = cache.lengths[0]
    if held > 1:
        cache.k[:, held - 1] = cache.k[:, held - 2]
    return _plain(q, cache.k[:, :held], cache.v[:, :held])


def reads_to_the_end_of_the_page(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks what lies past the length: a decode reads whole pages."""
    cache = options.get("cache")
    if not isinstance(cache, DenseCache):
        return _plain(q, k, v, **options)
    cache.append(k, v)
    page_end = -(-cache.lengths[0] // PAGE_MULTIPLE) * PAGE_MULTIPLE
    return _plain(q, cache.k[:, :page_end].contiguous(), cache.v[:, :page_end].contiguous(), causal=False)


def forgets_the_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Breaks the count of bytes: keys alone are counted."""
    return held_bytes(q, k, v) // 2
