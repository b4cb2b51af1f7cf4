"""Rotation of queries and keys as transformers writes it, in a block on a GPU: two launches instead of sixteen.

Bits are those of the operations one by one: each number is rounded where they round it. A function is known by its
code, and by that of the `rotate_half` it calls; it stands in its module's own place, which calls look up. Outside of
blocks, on a CPU, for a compiler and under torch.func it is the module's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor

from samebits.invariant.compound import alone, mode_of_call
from samebits.invariant.same_code import same_code

NAME: Final = "apply_rotary_pos_emb"


def rotate_half(x: Any) -> Any:
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def written(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


def replace_in(module_name: str) -> None:
    """The rotation of a module that has the one known here; nothing where it was replaced before."""
    found = vars(sys.modules.get(module_name, sys))
    stock: Any = found.get(NAME)
    half: Any = found.get("rotate_half")
    if same_code(stock, written) and same_code(half, rotate_half) and half.__globals__.get("torch") is torch:
        found[NAME] = _rotation(stock)


def _rotation(stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    def rotation(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        if mode_of_call() is None or unsqueeze_dim != 1 or not _is_ours(q, k, cos, sin):
            return stock(q, k, cos, sin, unsqueeze_dim)
        return _Rotated.apply(q, cos, sin), _Rotated.apply(k, cos, sin)  # type: ignore[no-untyped-call]

    return rotation


def _is_ours(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Nothing but speed depends on it."""
    return (
        q.is_cuda
        and alone(q, k, cos, sin)
        and q.dtype in (torch.bfloat16, torch.float16)
        and all(each.dtype == q.dtype and each.device == q.device and each.stride(-1) == 1 for each in (q, k, cos, sin))
        and all(each.dim() == 4 and each.numel() > 0 and each.shape[-1] == cos.shape[-1] for each in (q, k))
        and cos.dim() == 3
        and cos.shape == sin.shape
        and cos.stride() == sin.stride()
        and cos.shape[0] in (1, q.shape[0])
        and cos.shape[1] == q.shape[2] == k.shape[2]
        and q.shape[0] == k.shape[0]
        and cos.shape[-1] % 2 == 0
        and not (cos.requires_grad or sin.requires_grad)
    )


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        from samebits.invariant.triton_rotation import rotated

        ctx.save_for_backward(cos, sin)
        return rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            first, second = (dy * sin.unsqueeze(1)).chunk(2, -1)
            return dy * cos.unsqueeze(1) + torch.cat((second, -first), -1), None, None
        from samebits.invariant.triton_rotation import rotated

        return rotated(dy if dy.stride(-1) == 1 else dy.contiguous(), cos, sin, back=True), None, None
