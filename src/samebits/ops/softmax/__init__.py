"""The softmax: `softmax` and `log_softmax` over one axis, and their gradients.

A row's bits depend on that row alone. The order of a row's sum is fixed by its length: 256 lanes, folded by halves.
A row with a NaN or +inf is NaN; a row of nothing but -inf has softmax 0 and log_softmax -inf, never NaN."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_integer, check_tensors, choose_backend, short
from samebits.ops.backends import kernel_module
from samebits.ops.cuts import by_rows
from samebits.ops.registering import call, register


@checked
def softmax(x: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None, backend: str | None = None) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) over axis `dim`; `dtype` is that of the result: x's own, or float32."""
    return _over_axis("softmax", x, dim, dtype, backend, logarithm=False)


@checked
def log_softmax(x: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None, backend: str | None = None) -> Tensor:
    """(x - max) - log(sum(exp(x - max))) over axis `dim`; `dtype` is that of the result: x's own, or float32."""
    return _over_axis("log_softmax", x, dim, dtype, backend, logarithm=True)


def _over_axis(
    operator: str, x: Tensor, dim: int, dtype: torch.dtype | None, backend: str | None, *, logarithm: bool
) -> Tensor:
    backend = choose_backend(operator, x, backend)
    check_tensors(operator, backend, {"x": x})
    dtype = x.dtype if dtype is None else dtype
    if dtype not in (x.dtype, torch.float32):
        raise ValueError(f"{operator}: dtype is {dtype} for x of {short(x.dtype)}; allowed: x's own, torch.float32")
    dim = check_integer(operator, "dim", dim)
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"{operator}: dim is {dim}, x has shape {tuple(x.shape)}; allowed: one of its axes")
    if x.shape[dim] == 0:
        raise ValueError(f"{operator}: axis {dim} of x with shape {tuple(x.shape)} is empty; allowed: at least 1")
    if x.dim() == 2 and dim in (-1, 1):
        # Rows already: without views, and without their gradients, a small call takes half the time.
        rows: Tensor = call("softmax", x, dtype, logarithm, backend)
        return rows
    moved = x.movedim(dim, -1)
    y_MH = call("softmax", moved.reshape(-1, moved.shape[-1]), dtype, logarithm, backend)
    y: Tensor = y_MH.reshape(moved.shape).movedim(-1, dim)
    return y


_kernel = partial(kernel_module, __name__, "softmax")


def _softmax(x: Tensor, dtype: torch.dtype, logarithm: bool, backend: str) -> Tensor:
    if x.shape[0] == 0:
        return _softmax_fake(x, dtype, logarithm, backend)
    y: Tensor = _kernel(backend, x.device).forward(x.contiguous(), dtype, logarithm)
    return y


def _dx(dy: Tensor, y: Tensor, dtype: torch.dtype, logarithm: bool, backend: str) -> Tensor:
    if dy.shape[0] == 0:
        return _dx_fake(dy, y, dtype, logarithm, backend)
    dx: Tensor = _kernel(backend, dy.device).backward(dy.contiguous(), y.contiguous(), dtype, logarithm)
    return dx


def _softmax_fake(x: Tensor, dtype: torch.dtype, logarithm: bool, backend: str) -> Tensor:
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _dx_fake(dy: Tensor, y: Tensor, dtype: torch.dtype, logarithm: bool, backend: str) -> Tensor:
    return torch.empty_like(y, dtype=dtype, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype, bool, str], output: Tensor) -> None:
    x, _, ctx.logarithm, ctx.backend = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(output)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
    (y,) = ctx.saved_tensors
    return call("softmax_dx", dy, y, ctx.dtype, ctx.logarithm, ctx.backend), None, None, None


register(
    "softmax(Tensor x, ScalarType dtype, bool logarithm, str backend) -> Tensor",
    run=_softmax,
    fake=_softmax_fake,
    setup_context=_setup_context,
    backward=_backward,
    cuts=by_rows(1, "x"),
)
register(
    "softmax_dx(Tensor dy, Tensor y, ScalarType dtype, bool logarithm, str backend) -> Tensor",
    run=_dx,
    fake=_dx_fake,
    cuts=by_rows(1, "dy", "y"),
)
