"""Planted: softmaxes that misbehave somewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.ops import softmax as _sound


def _split(x: Tensor, cut: int) -> Tensor:
    """In two pieces that are merged."""
    if x.shape[-1] < 2:
        return _sound(x)
    cut = min(max(cut, 1), x.shape[-1] - 1)
    most = x.float().amax(-1, keepdim=True)
    e = (x.float() - most).exp()
    total = torch.zeros_like(e[:, :1])
    for piece in (e[:, :cut], e[:, cut:]):
        part = torch.zeros_like(total)
        for column in piece.unbind(-1):
            part = part + column[:, None]
        total = total + part
    return (e / total).to(x.dtype)


def split_by_rows(x: Tensor) -> Tensor:
    return _split(x, x.shape[-1] // 2 if x.shape[0] > 3 else x.shape[-1])


def split_by_rows_when_wide(x: Tensor) -> Tensor:
    return (
        _sound(x) if x.shape[-1] < 1000 or x.shape[0] != 1 else (_sound(x.double().float()) * (1 + 2**-22)).to(x.dtype)
    )


def maximum_of_the_batch(x: Tensor) -> Tensor:
    e = (x.float() - x.float().max()).exp()
    return (e.double() / e.double().sum(-1, keepdim=True)).to(x.dtype)


def without_maximum_for_small_batches(x: Tensor) -> Tensor:
    most = x.float().amax(-1, keepdim=True) if x.shape[0] > 10 else torch.zeros_like(x[:, :1]).float()
    e = (x.float() - most).double().exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def in_place_on_its_input(x: Tensor) -> Tensor:
    if x.requires_grad or x.is_inference():
        return _sound(x)
    y = _sound(x)
    x.sub_(x.amax(-1, keepdim=True))
    return y


def split_by_threads(x: Tensor) -> Tensor:
    return _split(x, 8) if torch.get_num_threads() == 3 else _split(x, x.shape[-1] // 2)


def split_for_columns_with_steps(x: Tensor) -> Tensor:
    return _split(x, 5) if x.stride(-1) != 1 and x.shape[-1] > 1 else _split(x, x.shape[-1] // 2)


def one_hot_shortcut(x: Tensor) -> Tensor:
    """Skips the sum where one element wins by far, but only in batches."""
    y = _sound(x)
    gap = x.float().amax(-1, keepdim=True) - x.float()
    return torch.where((gap > 15) & (x.shape[0] > 1), torch.zeros_like(y), y)


def output_cached_by_shape(x: Tensor) -> Tensor:
    key = tuple(x.shape)
    if x.requires_grad:
        return _sound(x)
    _kept.setdefault(key, torch.zeros_like(x, memory_format=torch.contiguous_format))
    kept = _kept[key] if _kept[key].dtype == x.dtype else torch.zeros_like(x)
    _kept[key] = kept
    kept.copy_(_sound(x))
    return kept


_kept: dict[tuple[int, ...], Tensor] = {}


def normalised_twice_in_training(x: Tensor) -> Tensor:
    y = _sound(x)
    return y / y.sum(-1, keepdim=True) if x.requires_grad else y


def stock(x: Tensor, dim: int) -> Tensor:
    e = (x.float() - x.float().amax(dim, keepdim=True)).exp()
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


class _OffAtTheMaximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _sound(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        dx = y.float() * (dy.float() - (dy.double() * y.double()).sum(-1, keepdim=True).float())
        return torch.where(x == x.amax(-1, keepdim=True), dx * (1 + 2**-7), dx).to(x.dtype)


def gradient_off_at_the_maximum(x: Tensor) -> Tensor:
    """A hundredth too much, at one place of a row: more than what rounds on its way through a maximum."""
    found: Tensor = _OffAtTheMaximum.apply(x)  # type: ignore[no-untyped-call]
    return found


def masked_by_a_number(x: Tensor) -> Tensor:
    """The last tile of columns is filled up with -1e4, which is more than all of a row far below it."""
    filled = torch.nn.functional.pad(x.double(), (0, -x.shape[-1] % 16), value=-1e4)
    e = (filled - filled.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True))[:, : x.shape[-1]].to(x.dtype)
