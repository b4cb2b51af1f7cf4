"""RMSNorm: `rmsnorm`, `add_rmsnorm` of a residual sum, its statistic, its gradients, the resumed weight
gradient.

A row's bits depend on that row and the weight alone. The order of a row's sum is fixed by its width: 256 lanes, folded
by halves. The weight's gradient is a chain over rows that may stop and go on in `rmsnorm_weight_gradient_`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_accumulator, check_dimensions, check_equal, check_tensors, choose_backend
from samebits.ops.backends import kernel_module
from samebits.ops.cuts import by_rows
from samebits.ops.registering import call, contiguous_like, register


@checked
def rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-6, *, backend: str | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    x_MH, _, backend = check_rmsnorm("rmsnorm", x, weight, eps, None, backend)
    y, _ = call("rmsnorm", x_MH, weight, eps, backend)
    return y.reshape(x.shape)  # type: ignore[no-any-return]


@checked
def add_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """(the norm of h, h itself), h = round(x + residual): one pass over the rows."""
    x_MH, residual_MH, backend = check_rmsnorm("add_rmsnorm", x, weight, eps, residual, backend)
    y, _, hidden = call("rmsnorm_residual", x_MH, weight, residual_MH, eps, backend)
    return y.reshape(x.shape), hidden.reshape(x.shape)


@checked
def rmsnorm_statistic(x: Tensor, weight: Tensor, eps: float = 1e-6, *, backend: str | None = None) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) of every row in float32, as `rmsnorm` uses it. Not differentiable."""
    x_MH, _, backend = check_rmsnorm("rmsnorm_statistic", x, weight, eps, None, backend)
    _, rstd_M = call("rmsnorm", x_MH.detach(), weight.detach(), eps, backend)
    return rstd_M.reshape(x.shape[:-1])  # type: ignore[no-any-return]


@checked
def rmsnorm_weight_gradient_(
    accumulator: Tensor, dy: Tensor, x: Tensor, statistic: Tensor, *, backend: str | None = None
) -> Tensor:
    """accumulator (H) float32 <- the chain over rows of dy * (x * statistic), resumed from it."""
    backend = choose_backend("rmsnorm_weight_gradient_", x, backend)
    check_tensors("rmsnorm_weight_gradient_", backend, {"dy": dy, "x": x})
    if dy.shape != x.shape or statistic.shape != x.shape[:-1] or statistic.dtype != torch.float32:
        raise ValueError(
            f"rmsnorm_weight_gradient_: x has shape {tuple(x.shape)}, dy {tuple(dy.shape)}, statistic"
            f" {tuple(statistic.shape)} {statistic.dtype}; allowed: dy like x, statistic float32 without the last axis"
        )
    width = x.shape[-1]
    check_accumulator("rmsnorm_weight_gradient_", accumulator, (width,), {"dy": dy, "x": x, "statistic": statistic})
    torch.ops.samebits.rmsnorm_dweight_(
        accumulator, dy.reshape(-1, width), x.reshape(-1, width), statistic.reshape(-1), backend
    )
    return accumulator


def check_rmsnorm(
    operator: str, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, backend: str | None
) -> tuple[Tensor, Tensor | None, str]:
    """Valid arguments as rows, and the backend."""
    backend = choose_backend(operator, x, backend)
    check_tensors(operator, backend, {"x": x, "weight": weight, "residual": residual})
    check_dimensions(operator, "weight", weight, 1)
    if x.dim() < 1 or x.shape[-1] == 0:
        raise ValueError(f"{operator}: x has shape {tuple(x.shape)}; allowed: a last axis of at least 1")
    check_equal(operator, "the last axis of x", x.shape[-1], "the length of weight", weight.shape[0])
    if not 0.0 <= eps < float("inf"):
        raise ValueError(f"{operator}: eps is {eps}; allowed: finite, at least 0")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(
            f"{operator}: residual has shape {tuple(residual.shape)}, x has {tuple(x.shape)}; they must agree"
        )
    width = x.shape[-1]
    return x.reshape(-1, width), None if residual is None else residual.reshape(-1, width), backend


_kernel = partial(kernel_module, __name__, "rmsnorm")


def _rstd_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    if x.shape[0] == 0:
        return torch.empty_like(x), x.new_empty(0, dtype=_rstd_dtype(x)), torch.empty_like(x)
    residual = None if residual is None else residual.contiguous()
    y, rstd, hidden = _kernel(backend, x.device).forward(x.contiguous(), weight.contiguous(), eps, residual)
    return y, rstd, hidden


def _rmsnorm(x: Tensor, weight: Tensor, eps: float, backend: str) -> tuple[Tensor, Tensor]:
    return _forward(x, weight, None, eps, backend)[:2]


def _rmsnorm_residual(
    x: Tensor, weight: Tensor, residual: Tensor, eps: float, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    return _forward(x, weight, residual, eps, backend)


def _dx(dy: Tensor, hidden: Tensor, weight: Tensor, rstd: Tensor, dhidden: Tensor | None, backend: str) -> Tensor:
    if dy.shape[0] == 0:
        return torch.empty_like(hidden, memory_format=torch.contiguous_format)
    dhidden = None if dhidden is None else dhidden.contiguous()
    kernel = _kernel(backend, dy.device)
    dx: Tensor = kernel.backward_input(dy.contiguous(), hidden.contiguous(), weight.contiguous(), rstd, dhidden)
    return dx


def _dweight_(accumulator: Tensor, dy: Tensor, hidden: Tensor, rstd: Tensor, backend: str) -> None:
    if dy.shape[0]:
        _kernel(backend, dy.device).backward_weight(
            dy.contiguous(), hidden.contiguous(), rstd.contiguous(), accumulator
        )


def _rmsnorm_fake(x: Tensor, weight: Tensor, eps: float, backend: str) -> tuple[Tensor, Tensor]:
    return contiguous_like(x), x.new_empty(x.shape[0], dtype=_rstd_dtype(x))


def _rmsnorm_residual_fake(
    x: Tensor, weight: Tensor, residual: Tensor, eps: float, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    return contiguous_like(x), x.new_empty(x.shape[0], dtype=_rstd_dtype(x)), contiguous_like(x)


def _dx_fake(dy: Tensor, hidden: Tensor, weight: Tensor, rstd: Tensor, dhidden: Tensor | None, backend: str) -> Tensor:
    return contiguous_like(hidden)


def _dweight_fake(accumulator: Tensor, dy: Tensor, hidden: Tensor, rstd: Tensor, backend: str) -> None:
    return None


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, ctx.backend = inputs[0], inputs[1], inputs[-1]
    rstd = output[1]
    ctx.mark_non_differentiable(rstd)
    hidden = output[2] if len(output) == 3 else x
    ctx.save_for_backward(hidden, weight, rstd)


def _gradients(ctx: Any, dy: Tensor, dhidden: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The gradients of hidden and of the weight."""
    hidden, weight, rstd = ctx.saved_tensors
    dx = call("rmsnorm_dx", dy, hidden, weight, rstd, dhidden, ctx.backend)
    if not ctx.needs_input_grad[1]:
        return dx, None
    accumulator = torch.zeros(weight.shape, dtype=rstd.dtype, device=weight.device)
    torch.ops.samebits.rmsnorm_dweight_(accumulator, dy, hidden, rstd, ctx.backend)
    return dx, accumulator.to(weight.dtype)


def _backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    dx, dweight = _gradients(ctx, dy, None)
    return dx, dweight, None, None


def _backward_residual(ctx: Any, dy: Tensor, _: Tensor, dhidden: Tensor) -> tuple[Tensor | None, ...]:
    dx, dweight = _gradients(ctx, dy, dhidden)
    return dx, dweight, dx, None, None


register(
    "rmsnorm(Tensor x, Tensor weight, float eps, str backend) -> (Tensor, Tensor)",
    run=_rmsnorm,
    fake=_rmsnorm_fake,
    setup_context=_setup_context,
    backward=_backward,
    cuts=by_rows(2, "x"),
)
register(
    "rmsnorm_residual(Tensor x, Tensor weight, Tensor residual, float eps, str backend) -> (Tensor, Tensor, Tensor)",
    run=_rmsnorm_residual,
    fake=_rmsnorm_residual_fake,
    setup_context=_setup_context,
    backward=_backward_residual,
    cuts=by_rows(3, "x", "residual"),
)
register(
    "rmsnorm_dx(Tensor dy, Tensor hidden, Tensor weight, Tensor rstd, Tensor? dhidden, str backend) -> Tensor",
    run=_dx,
    fake=_dx_fake,
    cuts=by_rows(1, "dy", "hidden", "rstd", "dhidden"),
)
register(
    "rmsnorm_dweight_(Tensor(a!) accumulator, Tensor dy, Tensor hidden, Tensor rstd, str backend) -> ()",
    run=_dweight_,
    fake=_dweight_fake,
)
