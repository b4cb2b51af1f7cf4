"""Planted faults of RMSNorm: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops.rmsnorm import rmsnorm, rmsnorm_statistic

_calls = itertools.count()


def _plain(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = rmsnorm(x, weight, eps)
    assert isinstance(y, Tensor)
    return y


def _turned(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same norm with the row rotated by one: other lanes meet, right within rounding, other bits."""
    return _plain(x.roll(1, -1), weight.roll(1, -1), eps).roll(-1, -1)


def split_by_batch(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks batch and chunk: more rows, another order."""
    return _plain(x, weight, eps) if x.shape[0] > 8 else _turned(x, weight, eps)


def other_order_every_time(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks repeat: as atomics do."""
    return _plain(x, weight, eps) if next(_calls) % 2 else _turned(x, weight, eps)


def reads_its_neighbours(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return _plain(x, weight, eps) + 0.0 * x.sum()


def tile_decides_order(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks tile: the number of threads or warps shapes the row's tree, as a bare sum over a tile does."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    return _plain(x, weight, eps) if plain else _turned(x, weight, eps)


def forgets_epsilon(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks accuracy: the mean alone under the root, and half the weight's bits."""
    return _plain(x, weight.bfloat16().to(weight.dtype) * 1.0078125, 0.0 * eps)


def other_order_on_cuda(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks device: the accelerator folds other lanes."""
    return _turned(x, weight, eps) if x.is_cuda else _plain(x, weight, eps)


def statistic_with_two_lanes_swapped(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks order: the first two elements change places, and so their lanes."""
    return rmsnorm_statistic(torch.cat([x[..., 1:2], x[..., :1], x[..., 2:]], -1), weight, eps)


class _LosesRows(torch.autograd.Function):
    """A norm whose weight gradient is rounded after every 16 rows, as accumulation in a narrow gradient does."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return _plain(x, weight, eps).detach()

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        xhat = x * rmsnorm_statistic(x, weight, ctx.eps)[:, None].to(x.dtype)
        dweight = torch.zeros_like(weight)
        for start in range(0, x.shape[0], 16):
            rows = slice(start, start + 16)
            dweight = dweight + (dy[rows] * xhat[rows]).sum(0).bfloat16().to(dweight.dtype)
        return torch.zeros_like(x), dweight, None


def rounds_between_micro_batches(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks micro: the gradient is not the chain that can be resumed."""
    return _LosesRows.apply(x, weight, eps)  # type: ignore[no-any-return, no-untyped-call]


def _by_torch(x: Tensor, weight: Tensor, squares: Tensor, terms: int, eps: float) -> Tensor:
    """x / sqrt(the sum of squares over terms + eps) * weight in torch's float32."""
    scale = (squares / terms + eps).rsqrt()[..., None]
    return (x.float() * scale * weight.float()).to(x.dtype)


def epsilon_outside_the_root(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks scaling: the root plus eps divides."""
    divisor = x.float().square().mean(-1, keepdim=True).sqrt() + eps
    return (x.float() / divisor * weight.float()).to(x.dtype)


def without_epsilon(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks zero rows: zero over zero."""
    return _plain(x, weight, 0.0 * eps)


def divides_by_one_less(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks the mean: n - 1, as a sample's variance has it."""
    return _by_torch(x, weight, x.float().square().sum(-1), x.shape[-1] - 1, eps)


def loses_the_last_tile(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks the sum: elements past the last whole tile of 16 are left out of it."""
    kept = x.shape[-1] // 16 * 16
    return _by_torch(x, weight, x[..., :kept].float().square().sum(-1), x.shape[-1], eps)


def adds_in_sixteen_bits(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks accuracy: every partial sum is rounded to eight bits of significand."""
    total = torch.zeros(x.shape[:-1], dtype=torch.bfloat16, device=x.device)
    for column in x.float().square().unbind(-1):
        total = (total.float() + column).bfloat16()
    return _by_torch(x, weight, total.float(), x.shape[-1], eps)


class _OtherGradients(torch.autograd.Function):
    """The norm with gradients in torch's float32, one thing wrong with them."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float, wrong: str) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.wrong = eps, wrong
        return _plain(x, weight, eps).detach()

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        rstd = rmsnorm_statistic(x, weight, ctx.eps)[:, None]
        if ctx.wrong == "narrow statistic":
            rstd = rstd.bfloat16().float()
        xhat, g = x.float() * rstd, dy.float() * weight.float()
        within_mean = dy.float() if ctx.wrong == "mean without weight" else g
        dx = rstd * (g - xhat * (within_mean * xhat).mean(-1, keepdim=True))
        dweight = (dy.float() * xhat).sum(0)
        return (
            dx.to(x.dtype) * (ctx.wrong != "no dx"),
            dweight.to(weight.dtype) * (ctx.wrong != "no dweight"),
            None,
            None,
        )


def weight_gradient_never_computed(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks the gradient of the weight: the buffer stays as it was allocated."""
    return _OtherGradients.apply(x, weight, eps, "no dweight")  # type: ignore[no-any-return, no-untyped-call]


def mean_without_the_weight(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks the gradient of x: right only for a weight of ones."""
    return _OtherGradients.apply(x, weight, eps, "mean without weight")  # type: ignore[no-any-return, no-untyped-call]


def nothing_flows_back(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks the gradient of x: cut off, as from a detached output."""
    return _OtherGradients.apply(x, weight, eps, "no dx")  # type: ignore[no-any-return, no-untyped-call]


def recomputes_in_sixteen_bits(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks the agreement of backward with forward: the statistic is stored in eight bits of significand."""
    return _OtherGradients.apply(x, weight, eps, "narrow statistic")  # type: ignore[no-any-return, no-untyped-call]


def takes_anything(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Breaks refusal: what does not fit is made to."""
    narrow = torch.float32 if x.dtype == torch.float64 else x.dtype
    return _plain(x.to(narrow), weight.reshape(-1)[: x.shape[-1]].to(narrow), abs(eps) if eps == eps else 0.0)
