"""Planted faults of LayerNorm: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops.layernorm import layernorm, layernorm_mean, layernorm_statistics

_calls = itertools.count()
Fault = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def _turned(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The same norm with the row rotated by one: other lanes meet, right within rounding, other bits."""
    return layernorm(x.roll(1, -1), weight.roll(1, -1), bias.roll(1, -1), eps).roll(-1, -1)


def split_by_batch(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks batch and chunk: more rows, another order."""
    return layernorm(x, weight, bias, eps) if x.shape[0] > 8 else _turned(x, weight, bias, eps)


def other_order_every_time(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks repeat: as atomics do."""
    return layernorm(x, weight, bias, eps) if next(_calls) % 2 else _turned(x, weight, bias, eps)


def reads_its_neighbours(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return layernorm(x, weight, bias, eps) + 0.0 * x.sum()


def tile_decides_order(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks tile: the number of threads or warps shapes the row's tree, as a bare sum over a tile does."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    return layernorm(x, weight, bias, eps) if plain else _turned(x, weight, bias, eps)


def forgets_epsilon(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks accuracy: the variance alone under the root, and half the weight's bits."""
    return layernorm(x, weight.bfloat16().to(weight.dtype) * 1.0078125, bias, 0.0 * eps)


def other_order_on_cuda(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks device: the accelerator folds other lanes."""
    return _turned(x, weight, bias, eps) if x.is_cuda else layernorm(x, weight, bias, eps)


def mean_with_two_lanes_swapped(x: Tensor) -> Tensor:
    """Breaks order: the first two elements change places, and so their lanes."""
    return layernorm_mean(torch.cat([x[..., 1:2], x[..., :1], x[..., 2:]], -1))


def _by_torch(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias in torch's float32."""
    scale = (variance + eps).rsqrt()[..., None]
    return ((x.float() - mean[..., None]) * scale * weight.float() + bias.float()).to(x.dtype)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.float().mean(-1), x.float().var(-1, correction=0)


def epsilon_outside_the_root(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks scaling: the root plus eps divides."""
    mean, variance = _moments(x)
    return _by_torch(x, weight, bias, mean, (variance.sqrt() + eps).square(), 0.0)


def without_epsilon(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks constant rows: zero over zero."""
    return layernorm(x, weight, bias, 0.0 * eps)


def keeps_the_mean(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks constant rows: the mean is in the variance alone."""
    return _by_torch(x, weight, bias, torch.zeros_like(_moments(x)[0]), _moments(x)[1], eps)


def variance_in_one_pass(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks the shift: the mean of squares less the square of the mean cancels far from zero."""
    mean = _moments(x)[0]
    return _by_torch(x, weight, bias, mean, (x.float().square().mean(-1) - mean.square()).clamp(min=0.0), eps)


def mean_in_sixteen_bits(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks the moments: a mean of eight bits of significand is subtracted."""
    mean, variance = _moments(x)
    return _by_torch(x, weight, bias, mean.bfloat16().float(), variance, eps)


def divides_by_one_less(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks the variance: n - 1, as a sample's has it."""
    mean, variance = _moments(x)
    return _by_torch(x, weight, bias, mean, variance * (x.shape[-1] / max(x.shape[-1] - 1, 1)), eps)


def loses_the_last_tile(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks the sums: elements past the last whole tile of 16 are left out of them."""
    kept, width = x[..., : x.shape[-1] // 16 * 16].float(), x.shape[-1]
    mean = kept.sum(-1) / width
    return _by_torch(x, weight, bias, mean, (kept - mean[..., None]).square().sum(-1) / width, eps)


def adds_in_sixteen_bits(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks accuracy: every partial sum of squares is rounded to eight bits of significand."""
    mean = _moments(x)[0]
    total = torch.zeros(x.shape[:-1], dtype=torch.bfloat16, device=x.device)
    for column in (x.float() - mean[..., None]).square().unbind(-1):
        total = (total.float() + column).bfloat16()
    return _by_torch(x, weight, bias, mean, total.float() / x.shape[-1], eps)


def _narrow_sum(terms: Tensor) -> Tensor:
    """Over rows, rounded after every 16 of them, as accumulation in a narrow gradient does."""
    total = torch.zeros_like(terms[0])
    for start in range(0, terms.shape[0], 16):
        total = total + terms[start : start + 16].sum(0).bfloat16().to(total.dtype)
    return total


class _OtherGradients(torch.autograd.Function):
    """The norm with gradients in torch's float32, one thing wrong with them."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, eps: float, wrong: str) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.wrong = eps, wrong
        return layernorm(x, weight, bias, eps).detach()

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        (x, weight), wrong = ctx.saved_tensors, ctx.wrong
        mean, rstd = (each[:, None] for each in layernorm_statistics(x, ctx.eps))
        if wrong == "narrow statistic":
            rstd = rstd.bfloat16().float()
        xhat, g = (x.float() - mean) * rstd, dy.float() * weight.float()
        within = dy.float() if wrong == "mean without weight" else g
        centre = 0.0 if wrong == "not centred" else within.mean(-1, keepdim=True)
        dx = rstd * (g - centre - xhat * (within * xhat).mean(-1, keepdim=True))
        dweight, dbias = (dy.float() * xhat).sum(0), dy.float().sum(0)
        if wrong == "narrow sums":
            dweight, dbias = _narrow_sum(dy * xhat), _narrow_sum(dy)
        found = {"no dx": dx.to(x.dtype), "no dweight": dweight.to(x.dtype), "no dbias": dbias.to(x.dtype)}
        return *(each * (name != wrong) for name, each in found.items()), None, None


def _with_gradients(wrong: str, words: str) -> Fault:
    def fault(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
        return _OtherGradients.apply(x, weight, bias, eps, wrong)  # type: ignore[no-any-return, no-untyped-call]

    fault.__doc__ = words
    return fault


weight_gradient_never_computed = _with_gradients(
    "no dweight", "Breaks the gradient of the weight: the buffer stays as it was allocated."
)
bias_gradient_never_computed = _with_gradients(
    "no dbias", "Breaks the gradient of the bias: the buffer stays as it was allocated."
)
mean_without_the_weight = _with_gradients(
    "mean without weight", "Breaks the gradient of x: right only for a weight of ones."
)
gradient_not_centred = _with_gradients(
    "not centred", "Breaks the gradient of x: RMSNorm's, without the mean of the gradient."
)
nothing_flows_back = _with_gradients("no dx", "Breaks the gradient of x: cut off, as from a detached output.")
recomputes_in_sixteen_bits = _with_gradients(
    "narrow statistic", "Breaks the agreement of backward with forward: the statistic is stored in eight bits."
)
rounds_between_micro_batches = _with_gradients(
    "narrow sums", "Breaks micro: sums are rounded after every 16 rows, not the chains that can be resumed."
)


def takes_anything(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Breaks refusal: what does not fit is made to."""
    narrow = torch.float32 if x.dtype == torch.float64 else x.dtype
    weight, bias = (each.reshape(-1)[: x.shape[-1]].to(narrow) for each in (weight, bias))
    return layernorm(x.to(narrow), weight, bias, abs(eps) if eps == eps else 0.0)
