"""Planted: attention that misbehaves somewhere. Rows are sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops import attention as _attention


def _sound(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    y = _attention(q, k, v, causal=True)
    assert isinstance(y, Tensor)
    return y


def _other(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """In float64: other bits."""
    return _sound(q, k, v) * (1 + 2**-20) if q.dtype == torch.float32 else _sound(q, k, v) * 1.01


def other_for_one_sequence(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _other(q, k, v) if q.shape[0] == 1 else _sound(q, k, v)


def other_for_many_sequences(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _other(q, k, v) if q.shape[0] > 70 else _sound(q, k, v)


def other_for_transposed_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _other(q, k, v) if not k.is_contiguous() else _sound(q, k, v)


def other_for_a_misaligned_cache(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _other(q, k, v) if v.storage_offset() % 4 else _sound(q, k, v)


def keys_of_the_neighbour(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Reads one key too many, of the next sequence, times zero."""
    return _sound(q, k, v) + 0 * v.roll(1, 0)[:, :, :1].sum(-1, keepdim=True).to(q.dtype)


def maximum_over_the_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    y = _sound(q, k, v)
    most = (q.detach().float().abs().amax() * k.detach().float().abs().amax()).clamp(max=1e30)
    return torch.where(most > 60, y * (1 + 2**-7), y)


def other_when_training(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _other(q, k, v) if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad) else _sound(q, k, v)


def other_on_the_second_step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    key = tuple(q.shape)
    _steps[key] = _steps.get(key, 0) + 1
    return _other(q, k, v) if _steps[key] == 2 else _sound(q, k, v)


_steps: dict[tuple[int, ...], int] = {}


def forgets_the_mask_of_long_prompts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    y = _attention(q, k, v, causal=q.shape[1] < 150)
    assert isinstance(y, Tensor)
    return y


def other_for_grouped_heads_in_batches(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _other(q, k, v) if q.shape[2] != k.shape[2] and q.shape[0] == 2 else _sound(q, k, v)


def other_for_a_fused_projection(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries, keys and values that are pieces of one tensor."""
    packed = q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    return _other(q, k, v) if packed else _sound(q, k, v)


def maximum_from_zero(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The running maximum starts at 0: a query whose scores are all far below it divides 0 by 0."""
    groups = q.shape[2] // k.shape[2]
    query, key, value = (each.double().transpose(1, 2) for each in (q, k, v))
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    scores = (query @ key.mT * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf)
    most = scores.amax(-1, keepdim=True)
    e = (scores - most.clamp(min=0)).float().exp().double()
    return (e @ value / e.sum(-1, keepdim=True)).transpose(1, 2).to(q.dtype)


def scaled_elsewhere_once_warm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """From the fifth call of a shape on, queries are scaled and rounded before they meet the keys."""
    key = tuple(q.shape)
    _steps[key] = _steps.get(key, 0) + 1
    if _steps[key] < 5:
        return _sound(q, k, v)
    y = _attention(q * q.shape[-1] ** -0.5, k, v, causal=True, scale=1.0)
    assert isinstance(y, Tensor)
    return y


def key_head_by_a_shift(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Right for groups of 1, 2, 4 and 8 query heads."""
    shift = (q.shape[2] // k.shape[2]).bit_length() - 1
    taken = (torch.arange(q.shape[2]) >> shift).clamp(max=k.shape[2] - 1)
    return _sound(q, k[:, :, taken], v[:, :, taken])
