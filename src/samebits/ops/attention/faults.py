"""Planted faults of attention: each breaks one promise, and the check of that promise must say so.

Faults of shared heads and of caches stand in shared_faults.py."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops.attention import DenseCache, attention
from samebits.ops.attention.check import capped, full, windowed
from samebits.ops.attention.exact import CAPPED, WINDOWED, Options, dense_weights, repeated
from samebits.ops.attention.forms import BLOCK_KEYS, WEIGHT_LANES

_calls = itertools.count()
HALF_BLOCK = BLOCK_KEYS // 2


def _plain(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    assert isinstance(out, Tensor)
    return out


def _shifted(q: Tensor, k: Tensor, v: Tensor, keys: int, **options: Any) -> Tensor:
    """The same attention with every block of keys begun that many keys earlier: right within rounding, other bits.

    Keys in front that weigh nothing shift the blocks; a longer head makes them weigh nothing and changes no score."""
    wide = torch.nn.functional.pad(q, (0, 8))
    wide = torch.cat([wide[..., :-1], torch.ones_like(wide[..., -1:])], -1)
    front = k.new_zeros(k.shape[0], keys, k.shape[2], k.shape[3] + 8)
    front[..., -1] = torch.finfo(k.dtype).min
    k = torch.cat([front, torch.nn.functional.pad(k, (0, 8))], 1)
    v = torch.nn.functional.pad(v, (0, 8, 0, 0, keys, 0))
    return _plain(wide, k, v, scale=q.shape[-1] ** -0.5, **options)[..., : q.shape[-1]]


def _elsewhere(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """The same attention in another order: shifted blocks, or in a single block the last row's keys turned."""
    if options or k.shape[1] > HALF_BLOCK or k.shape[1] != q.shape[1]:
        return _shifted(q, k, v, HALF_BLOCK, **options)
    last = full(q[:, -1:], k.flip(1), v.flip(1))
    return torch.cat([_plain(q, k, v)[:, :-1], last], 1)


def other_order_every_time(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks repeat: as atomics do."""
    return _plain(q, k, v, **options) if next(_calls) % 2 else _elsewhere(q, k, v, **options)


def split_by_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks batch: few sequences, keys shared out otherwise, as a library does that fills its processors."""
    return _plain(q, k, v, **options) if q.shape[0] > 2 else _elsewhere(q, k, v, **options)


def blocks_from_the_physical_start(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks padding: blocks counted from the row's first place in memory, so that left padding moves them."""
    if options.get("padding") != "left":
        return _plain(q, k, v, **options)
    rows = []
    for n, length in enumerate(options["lengths"].tolist()):
        own = slice(q.shape[1] - length, None)
        row = _shifted(q[n : n + 1, own], k[n : n + 1, own], v[n : n + 1, own], q.shape[1] - length)
        rows.append(torch.nn.functional.pad(row, (0, 0, 0, 0, q.shape[1] - length, 0)))
    return torch.cat(rows)


def blocks_from_the_chunk(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks chunk: blocks counted from the chunk's own first query."""
    before = 0 if k is None or options else k.shape[1] - q.shape[1]
    return _shifted(q, k, v, -before % BLOCK_KEYS) if before else _plain(q, k, v, **options)


def decodes_with_another_block(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks cache: one query against a cache takes its keys in other blocks than a prompt does."""
    cache = options.get("cache")
    if not isinstance(cache, DenseCache):
        return _plain(q, k, v, **options)
    cache.append(k, v)
    held = cache.lengths[0]
    return _shifted(q, cache.k[:, :held], cache.v[:, :held], HALF_BLOCK)


def tile_decides_order(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks tile: a launch number that chooses the block of keys."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    return _plain(q, k, v, **options) if plain else _elsewhere(q, k, v, **options)


def other_order_on_cuda(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks device: the accelerator takes other blocks."""
    return _shifted(q, k, v, HALF_BLOCK, **options) if q.is_cuda else _plain(q, k, v, **options)


def reads_its_neighbours(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks padding: a NaN in one sequence reaches the others, as a missing mask lets it."""
    return _plain(q, k, v, **options) + 0.0 * q.sum()


def sees_one_key_too_many(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks accuracy: the mask is off by one, and a query looks at the token it should predict."""
    return _plain(q, torch.cat([k, k[:, -1:]], 1), torch.cat([v, v[:, -1:]], 1), **options)


def never_rescales(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks accuracy: blocks are summed each under its own maximum."""
    _, score = dense_weights(q, k, Options())
    future = torch.ones(score.shape[-2:], device=q.device).triu(1).bool()
    terms = []
    for block in torch.split(score.masked_fill(future, -torch.inf), BLOCK_KEYS, -1):
        level = block.amax(-1, keepdim=True)
        terms.append((block - torch.where(level.isinf(), 0.0, level)).exp())
    weights = torch.cat(terms, -1)
    return torch.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdim=True), repeated(v, q)).to(q.dtype)


def full_without_the_last_key(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks accuracy of full: the last key is lost."""
    return full(q, k[:, :-1], v[:, :-1], **options) if k.shape[1] > 1 else full(q, k, 0.5 * v, **options)


def full_reads_its_neighbours(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks padding of full."""
    return full(q, k, v, **options) + 0.0 * q.sum()


def window_off_by_one(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks accuracy of windowed: one key more."""
    return _plain(q, k, v, window=WINDOWED.window + 1, **options)


def window_from_the_chunk(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks chunk of windowed: keys before the chunk are forgotten."""
    return windowed(q, k[:, -q.shape[1] :], v[:, -q.shape[1] :], **options)


def cap_without_its_slope(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks accuracy of capped: the gradient flows as if scores were not bent."""
    bent, straight = capped(q, k, v, **options), _plain(q, k, v, **options)
    return bent.detach() + (straight - straight.detach())


def cap_forgotten_in_decode(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks cache of capped: the decode's cap is twice the prompt's."""
    cap = CAPPED.softcap if options.get("cache") is None else 2 * CAPPED.softcap
    return _plain(q, k, v, softcap=cap, **options)


def scale_without_the_root(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks accuracy: scores are divided by the head size, not by its root."""
    return _plain(q, k, v, **{**options, "scale": 1 / q.shape[-1]})


def no_mask(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks causality: every query sees every key."""
    return _plain(q, k, v, **{**options, "causal": False})


def output_is_not_rescaled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks sums of weights: a new maximum shrinks the sum of weights and not the values summed so far."""
    score = _causal_scores(q, k)
    level, total = score.new_full((*score.shape[:-1], 1), -torch.inf), torch.zeros_like(score[..., :1])
    out = q.new_zeros(q.shape).double()
    for block, values in zip(
        torch.split(score, BLOCK_KEYS, -1), torch.split(repeated(v, q), BLOCK_KEYS, 1), strict=True
    ):
        before, level = level, torch.maximum(level, block.amax(-1, keepdim=True))
        weights = (block - level).exp()
        total = total * (before - level).exp() + weights.sum(-1, keepdim=True)
        out = out + torch.einsum("bhij,bjhd->bihd", weights, values)
    return (out / total.transpose(1, 2)).to(q.dtype)


def _causal_scores(q: Tensor, k: Tensor) -> Tensor:
    """(B, H, S, S) in float64, -inf for later keys."""
    _, score = dense_weights(q, k, Options())
    return score.masked_fill(torch.ones(score.shape[-2:], device=q.device).triu(1).bool(), -torch.inf)


def loses_the_last_lanes(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks sums of weights: keys past the last whole eight are left out of the sum, not of the values."""
    score = _causal_scores(q, k)
    weights = (score - score.amax(-1, keepdim=True)).exp()
    total = weights[..., : k.shape[1] // WEIGHT_LANES * WEIGHT_LANES].sum(-1, keepdim=True)
    return torch.einsum("bhij,bjhd->bihd", weights / total, repeated(v, q)).to(q.dtype)


def sums_in_16_bits(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks accuracy: values are summed in bfloat16."""
    weights = _causal_scores(q, k).softmax(-1)
    out = torch.zeros_like(q, dtype=torch.bfloat16)
    for j in range(k.shape[1]):
        out = out + (weights[..., j].transpose(1, 2)[..., None] * repeated(v, q)[:, j, None]).bfloat16()
    return out.to(q.dtype)


class _TurnedGradient(torch.autograd.Function):
    """The same numbers forward; backward the tokens in reverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].flip(1)


def gradient_of_k_turned(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks accuracy of gradients: what belongs to one key flows into another, as without the transpose."""
    return _plain(q, _TurnedGradient.apply(k), v, **options)  # type: ignore[no-untyped-call]


def no_group_sum(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks accuracy of gradients: only the first query head of a group reaches its key head."""
    group = q.shape[2] // k.shape[2]
    first = (torch.arange(q.shape[2], device=q.device) % group == 0)[:, None]
    k, v = (torch.where(first, wide, wide.detach()) for wide in (x.repeat_interleave(group, 2) for x in (k, v)))
    return _plain(q, k, v, **options)


def empty_row_through_softmax(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Breaks rows without a key: a row of -inf has no softmax."""
    if options:
        return _plain(q, k, v, **options) * torch.nan
    weights, _ = dense_weights(q, k, Options())
    return torch.einsum("bhij,bjhd->bihd", weights, repeated(v, q)).to(q.dtype)
