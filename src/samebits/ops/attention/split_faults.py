"""Planted faults of attention's splits: each breaks the order in which many keys are summed, and nothing else.

A call of one query over more keys than a split goes the wrong way, by the reference with other splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.ops.attention import attention
from samebits.ops.attention.forms import SPLIT_KEYS, Rule
from samebits.ops.attention.reference import row32, splits_of


def _one_query(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, splits: Sequence[slice]) -> Tensor:
    """A query that sees all keys, merged in these splits."""
    rule = Rule(causal=True, window=0, scale=q_THD.shape[-1] ** -0.5, softcap=0.0)
    seen = np.ones((1, len(k_THD)), bool)
    group = q_THD.shape[1] // k_THD.shape[1]
    heads = [
        row32(q_THD[:, h], k_THD[:, h // group], v_THD[:, h // group], seen, rule, splits)[0]
        for h in range(q_THD.shape[1])
    ]
    return torch.stack(heads, 1)


def _plain(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    assert isinstance(out, Tensor)
    return out


def _decoded(q: Tensor, k: Tensor, v: Tensor, splits: Callable[[int], Sequence[slice]], **options: Any) -> Tensor:
    if options or k is None or q.shape[1] != 1 or k.shape[1] <= SPLIT_KEYS:
        return _plain(q, k, v, **options)
    return torch.stack([_one_query(*each, splits(k.shape[1])) for each in zip(q, k, v, strict=True)])


def merged_right_to_left(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """The last split first."""
    return _decoded(q, k, v, lambda keys: splits_of(keys)[::-1], **options)


def splits_twice_as_long(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """4096 keys a split."""

    def twice(keys: int) -> list[slice]:
        return [slice(start, min(start + 2 * SPLIT_KEYS, keys)) for start in range(0, keys, 2 * SPLIT_KEYS)]

    return _decoded(q, k, v, twice, **options)


def splits_from_the_first_key_of_the_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """A packed sequence is cut where all keys of the batch, counted together, come to a border."""
    if set(options) != {"cu_seqlens", "cu_seqlens_k"}:
        return _plain(q, k, v, **options)
    out = _plain(q, k, v, **options)
    edges, edges_k = options["cu_seqlens"], options["cu_seqlens_k"]
    for n, first in enumerate(edges[:-1]):
        if edges[n + 1] - first != 1:
            continue
        own = slice(edges_k[n], edges_k[n + 1])
        borders = [at for at in range(0, own.stop, SPLIT_KEYS) if at > own.start]
        cuts = [own.start, *borders, own.stop]
        splits = [slice(left - own.start, right - own.start) for left, right in pairwise(cuts)]
        out[first : first + 1] = _one_query(q[first : first + 1], k[own], v[own], splits)
    return out


def unseen_split_times_zero(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """A split before the window is not passed over but multiplied by the weight zero."""
    out, window = _plain(q, k, v, **options), options.get("window")
    if not window or k is None or k.shape[1] - window < SPLIT_KEYS or q.shape[1] != 1:
        return out
    return out + 0.0 * v[:, :SPLIT_KEYS].sum()
