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
