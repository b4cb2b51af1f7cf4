"""The forward pass made of plain torch functions: the measured negative control, and the baseline of speed.

Batched as stock code does it: rows are padded to the longest and masked, whether keys come from the batch or from a
cache. Nothing here keeps bits. `Model(operators=STOCK)` with weights that require gradients trains by autograd; there
are no sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from samebits.model.batch import IGNORED
from samebits.nn.strategy import Operators
from samebits.ops.attention.cache import Cache
from samebits.ops.attention.layout import Spread
from samebits.ops.rope.scaling import RopeScaling, attention_factor, frequencies

# B sequences, T tokens of all of them, Q the longest's queries, K the longest's keys, H heads, D head width.


def _embedding(ids: Tensor, weight: Tensor, sums: None) -> Tensor:
    return functional.embedding(ids, weight)


def _linear(x: Tensor, weight: Tensor, sums: None) -> Tensor:
    return functional.linear(x, weight)


def _rmsnorm(x: Tensor, weight: Tensor, sums: None, eps: float) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


@cache
def _frequencies(size: int, theta: float, scaling: RopeScaling | None, device: torch.device) -> Tensor:
    return torch.tensor(frequencies(size, theta, scaling), dtype=torch.float32, device=device)


def _rope(x_THD: Tensor, positions_T: Tensor, theta: float, *, scaling: RopeScaling | None = None) -> Tensor:
    angles = positions_T[:, None].float() * _frequencies(x_THD.shape[-1], theta, scaling, x_THD.device)
    factor = attention_factor(scaling)
    both = torch.cat((angles, angles), -1)[:, None]
    first, second = x_THD.float().chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return (x_THD.float() * both.cos() * factor + turned * both.sin() * factor).to(x_THD.dtype)


def _attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Spread, cache: Cache | None = None) -> Tensor:
    lengths = cu_seqlens.length.tolist()
    q_BQHD = _padded(q, lengths)
    if cache is None:
        out_BQHD = _attend(q_BQHD, _padded(k, lengths), _padded(v, lengths), None)
    else:
        cache.append_spread(k, v, cu_seqlens)
        places_BK, held_B = _places(cache)
        mask_BQK = _mask(q_BQHD.shape[1], torch.tensor(lengths, device=q.device), places_BK.shape[1], held_B)
        out_BQHD = _attend(q_BQHD, cache.k_flat[places_BK], cache.v_flat[places_BK], mask_BQK)
    return torch.cat([row[:length] for row, length in zip(out_BQHD, lengths, strict=True)])


def _attend(q_BQHD: Tensor, k_BKHD: Tensor, v_BKHD: Tensor, mask_BQK: Tensor | None) -> Tensor:
    """Without a mask: causal. What stands right of a row's end is seen by no query of that row."""
    q, k, v = (each.transpose(1, 2) for each in (q_BQHD, k_BKHD, v_BKHD))
    mask = None if mask_BQK is None else mask_BQK[:, None]
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
    ).transpose(1, 2)


def _padded(rows_THD: Tensor, lengths: Sequence[int]) -> Tensor:
    if len(set(lengths)) == 1:
        return rows_THD.reshape(len(lengths), lengths[0], *rows_THD.shape[1:])
    return pad_sequence(list(torch.split(rows_THD, list(lengths))), batch_first=True)


def _places(cache: Cache) -> tuple[Tensor, Tensor]:
    """The rows of the flat storage that hold each sequence's keys, padded with its own first ones; keys held."""
    spread = cache.spread()
    keys_K = torch.arange(spread.longest, device=spread.length.device)
    keys_BK = torch.where(keys_K < spread.length[:, None], keys_K, 0)
    if cache.pages is None:
        return spread.start[:, None] + keys_BK, spread.length
    pages_BK = cache.pages.long().gather(1, keys_BK // cache.page_size)
    return pages_BK * cache.page_size + keys_BK % cache.page_size, spread.length


def _mask(queries: int, asked_B: Tensor, keys: int, held_B: Tensor) -> Tensor:
    """Query i of a row that asks for its last positions sees the keys up to its own."""
    own_BQ = (held_B - asked_B)[:, None] + torch.arange(queries, device=held_B.device)
    keys_K = torch.arange(keys, device=held_B.device)
    return (keys_K <= own_BQ[:, :, None]) & (keys_K < held_B[:, None, None])


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def _lm_head(hidden: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(hidden, weight).float()


def _logprob(hidden: Tensor, weight: Tensor, ids: Tensor, sums: None) -> Tensor:
    return _logprob_of_logits(_lm_head(hidden, weight), ids)


def _logprob_of_logits(logits: Tensor, ids: Tensor, *, ignore_index: int = IGNORED) -> Tensor:
    every = functional.log_softmax(logits, -1)
    chosen = every.gather(-1, ids.clamp(min=0)[:, None])[:, 0]
    return torch.where(ids == ignore_index, 0.0, chosen)


STOCK: Final = Operators(
    embedding=_embedding,
    rmsnorm=_rmsnorm,
    linear=_linear,
    rope=_rope,
    attention=_attention,
    swiglu=_swiglu,
    lm_head=_lm_head,
    logprob=_logprob,
    logprob_of_logits=_logprob_of_logits,
)
