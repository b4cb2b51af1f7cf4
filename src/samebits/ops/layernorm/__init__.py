"""LayerNorm: `layernorm`, its statistics, its gradients, the resumed gradients of weight and bias.

A row's bits depend on that row, the weight and the bias alone. Mean and variance are two sums, one after the other, in
an order fixed by the row's width: 256 lanes, folded by halves. The gradients of weight and bias are chains over rows
that may stop and be resumed: `layernorm_weight_gradient_`, `layernorm_bias_gradient_`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_accumulator, check_dimensions, check_equal, check_tensors, choose_backend
from samebits.ops.backends import kernel_module
from samebits.ops.registering import call, contiguous_like, register


@checked
def layernorm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    backend: str | None = None,
) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last axis; the variance divides by the width.

    Without a weight nothing is multiplied, without a bias nothing is added."""
    x_MH, backend = _check("layernorm", x, weight, bias, eps, backend)
    y_MH, _, _ = call("layernorm", x_MH, weight, bias, eps, backend)
    return y_MH.reshape(x.shape)  # type: ignore[no-any-return]


@checked
def layernorm_statistics(x: Tensor, eps: float = 1e-5, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """(mean(x), 1 / sqrt(var(x) + eps)) of every row in float32, as `layernorm` uses them. Not differentiable."""
    x_MH, backend = _check("layernorm_statistics", x, None, None, eps, backend)
    _, mean_M, rstd_M = call("layernorm", x_MH.detach(), None, None, eps, backend)
    return mean_M.reshape(x.shape[:-1]), rstd_M.reshape(x.shape[:-1])


@checked
def layernorm_mean(x: Tensor, *, backend: str | None = None) -> Tensor:
    """mean(x) of every row in float32, as `layernorm` uses it. Not differentiable."""
    return layernorm_statistics(x, backend=backend)[0]


@checked
def layernorm_weight_gradient_(
    accumulator: Tensor, dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *, backend: str | None = None
) -> Tensor:
    """accumulator (H) float32 <- the chain over rows of dy * ((x - mean) * rstd), resumed from it."""
    operator = "layernorm_weight_gradient_"
    backend = choose_backend(operator, x, backend)
    check_tensors(operator, backend, {"dy": dy, "x": x})
    check_tensors(operator, backend, {"mean": mean, "rstd": rstd})
    statistics = mean.shape == rstd.shape == x.shape[:-1] and mean.dtype == torch.float32
    if x.dim() < 1 or dy.shape != x.shape or not statistics:
        raise ValueError(
            f"{operator}: x has shape {tuple(x.shape)}, dy {tuple(dy.shape)}, mean {tuple(mean.shape)} {mean.dtype},"
            f" rstd {tuple(rstd.shape)} {rstd.dtype}; allowed: dy like x, mean and rstd float32 without the last axis"
        )
    given, width = {"dy": dy, "x": x, "mean": mean, "rstd": rstd}, x.shape[-1]
    check_accumulator(operator, accumulator, (width,), given)
    rows = x.shape[:-1].numel()
    torch.ops.samebits.layernorm_dweight_(
        accumulator, dy.reshape(rows, width), x.reshape(rows, width), mean.reshape(rows), rstd.reshape(rows), backend
    )
    return accumulator


@checked
def layernorm_bias_gradient_(accumulator: Tensor, dy: Tensor, *, backend: str | None = None) -> Tensor:
    """accumulator (H) float32 <- the chain over rows of dy, resumed from it."""
    operator = "layernorm_bias_gradient_"
    backend = choose_backend(operator, dy, backend)
    check_tensors(operator, backend, {"dy": dy})
    if dy.dim() < 1:
        raise ValueError(f"{operator}: dy has shape {tuple(dy.shape)}; allowed: at least one axis")
    check_accumulator(operator, accumulator, (dy.shape[-1],), {"dy": dy})
    torch.ops.samebits.layernorm_dbias_(accumulator, dy.reshape(dy.shape[:-1].numel(), dy.shape[-1]), backend)
    return accumulator


def _check(
    operator: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, backend: str | None
) -> tuple[Tensor, str]:
    """Valid arguments: x as rows, and the backend."""
    backend = choose_backend(operator, x, backend)
    check_tensors(operator, backend, {"x": x, "weight": weight, "bias": bias})
    if x.dim() < 1 or x.shape[-1] == 0:
        raise ValueError(f"{operator}: x has shape {tuple(x.shape)}; allowed: a last axis of at least 1")
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None:
            check_dimensions(operator, name, given, 1)
            check_equal(operator, "the last axis of x", x.shape[-1], f"the length of {name}", given.shape[0])
    if not 0.0 <= eps < float("inf"):
        raise ValueError(f"{operator}: eps is {eps}; allowed: finite, at least 0")
    return x.reshape(-1, x.shape[-1]), backend


_kernel = partial(kernel_module, __name__, "layernorm")


def _statistics_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _layernorm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    if x.shape[0] == 0:
        return _layernorm_fake(x, weight, bias, eps, backend)
    kernel = _kernel(backend, x.device)
    y, mean, rstd = kernel.forward(x.contiguous(), _contiguous(weight), _contiguous(bias), eps)
    return y, mean, rstd


def _dx(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, backend: str) -> Tensor:
    if dy.shape[0] == 0:
        return contiguous_like(x)
    kernel = _kernel(backend, dy.device)
    statistics = mean.contiguous(), rstd.contiguous()
    dx: Tensor = kernel.backward_input(dy.contiguous(), x.contiguous(), _contiguous(weight), *statistics)
    return dx


def _dweight_(accumulator: Tensor, dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, backend: str) -> None:
    if dy.shape[0]:
        given = [each.contiguous() for each in (dy, x, mean, rstd)]
        _kernel(backend, dy.device).backward_weight(*given, accumulator)


def _dbias_(accumulator: Tensor, dy: Tensor, backend: str) -> None:
    if dy.shape[0]:
        _kernel(backend, dy.device).backward_bias(dy.contiguous(), accumulator)


def _layernorm_fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    mean, rstd = (x.new_empty(x.shape[0], dtype=_statistics_dtype(x)) for _ in range(2))
    return contiguous_like(x), mean, rstd


def _dx_fake(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, backend: str) -> Tensor:
    return contiguous_like(x)


def _dweight_fake(accumulator: Tensor, dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, backend: str) -> None:
    return None


def _dbias_fake(accumulator: Tensor, dy: Tensor, backend: str) -> None:
    return None


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, ctx.backend = inputs
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, mean, rstd)


def _backward(ctx: Any, dy: Tensor, _mean: Tensor, _rstd: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, mean, rstd = ctx.saved_tensors
    dx = dweight = dbias = None
    if ctx.needs_input_grad[0]:
        dx = call("layernorm_dx", dy, x, weight, mean, rstd, ctx.backend)
    if ctx.needs_input_grad[1]:
        total = torch.zeros(x.shape[1], dtype=rstd.dtype, device=x.device)
        torch.ops.samebits.layernorm_dweight_(total, dy, x, mean, rstd, ctx.backend)
        dweight = total.to(weight.dtype)
    if ctx.needs_input_grad[2]:
        total = torch.zeros(x.shape[1], dtype=rstd.dtype, device=x.device)
        torch.ops.samebits.layernorm_dbias_(total, dy, ctx.backend)
        dbias = total.to(ctx.bias_dtype)
    return dx, dweight, dbias, None, None


register(
    "layernorm(Tensor x, Tensor? weight, Tensor? bias, float eps, str backend) -> (Tensor, Tensor, Tensor)",
    run=_layernorm,
    fake=_layernorm_fake,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "layernorm_dx(Tensor dy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd, str backend) -> Tensor",
    run=_dx,
    fake=_dx_fake,
)
register(
    "layernorm_dweight_(Tensor(a!) accumulator, Tensor dy, Tensor x, Tensor mean, Tensor rstd, str backend) -> ()",
    run=_dweight_,
    fake=_dweight_fake,
)
register("layernorm_dbias_(Tensor(a!) accumulator, Tensor dy, str backend) -> ()", run=_dbias_, fake=_dbias_fake)
