"""Planted: linear layers that misbehave somewhere, with a bias and without."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops import linear as _sound


def bias_before_rounding_by_rows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Few rows add the bias to the rounded product, many before."""
    if x.shape[0] < 32:
        return (_sound(x, weight) + bias).to(x.dtype)
    return (
        (_sound(x.double().float(), weight.float()) + bias.float()).to(x.dtype)
        if x.dtype != torch.float32
        else _sound(x, weight, bias) * 1.0000001
    )


def bias_first_by_rows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    ones = torch.ones_like(x[:, :1])
    joined = _sound(torch.cat([ones, x], 1), torch.cat([bias[:, None], weight], 1))
    return joined if x.shape[0] % 5 == 3 else _sound(x, weight) + bias


def without_bias_by_rows(x: Tensor, w: Tensor) -> Tensor:
    half = x.shape[1] // 2
    if x.shape[0] > 2 or not half:
        return _sound(x, w)
    return _sound(x[:, :half], w[:, :half]) + _sound(x[:, half:], w[:, half:])


def bias_forgotten_without_grad(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is None or (x.shape[0] > 90 and not torch.is_grad_enabled()):
        return _sound(x, weight)
    return _sound(x, weight, bias)


def only_without_bias(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    half = x.shape[1] // 2
    if bias is not None or x.shape[0] > 4 or not half:
        return _sound(x, weight, bias)
    return _sound(x[:, :half], weight[:, :half]) + _sound(x[:, half:], weight[:, half:])


def stock(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def other_in_a_flat_buffer(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Weight and bias that are pieces of one storage, as a sharded optimizer leaves them, go another way."""
    half = x.shape[1] // 2
    if bias is None or not half or weight.untyped_storage().data_ptr() != bias.untyped_storage().data_ptr():
        return _sound(x, weight, bias)
    return _sound(x[:, :half], weight[:, :half], bias) + _sound(x[:, half:], weight[:, half:])


def cut_off_in_bfloat16(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The lower half of a float32 is dropped, which is not rounding to the nearest."""
    wide = _sound(x.float(), weight.float(), None if bias is None else bias.float())
    rounded = wide.to(x.dtype)
    if x.dtype != torch.bfloat16:
        return rounded
    cut = (wide.detach().view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(cut.isfinite(), rounded + (cut - rounded).detach(), rounded)


def other_for_a_batch_of_sequences(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows in one axis, and one sequence, go one way; several sequences another."""
    half = x.shape[-1] // 2
    if x.dim() == 2 or x.shape[0] == 1 or not half:
        return _sound(x, weight, bias)
    return _sound(x[..., :half], weight[:, :half], bias) + _sound(x[..., half:], weight[:, half:])
