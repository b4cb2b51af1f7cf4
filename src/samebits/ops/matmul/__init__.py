"""The matrix product: `matmul`, `linear`, their gradients, and the resumed chain `matmul_accumulate_`.

A row's bits depend on that row, on b and on nothing else. Gradients are products too: dX is a chain over the output
axis, dW and the bias gradient are chains over the rows, which may stop and go on in `matmul_accumulate_`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_accumulator, check_dimensions, check_equal, check_tensors, choose_backend
from samebits.ops.backends import kernel_module
from samebits.ops.cuts import Cut
from samebits.ops.registering import call, register


@checked
def matmul(a: Tensor, b: Tensor, *, backend: str | None = None) -> Tensor:
    """a (..., K) times b (K, N), one chain over K an output, rounded once."""
    backend = choose_backend("matmul", a, backend)
    check_tensors("matmul", backend, {"a": a, "b": b})
    check_dimensions("matmul", "b", b, 2)
    a_MK = _rows("matmul", "a", a)
    check_equal("matmul", "the last axis of a", a_MK.shape[1], "the first axis of b", b.shape[0])
    y_MN: Tensor = call("gemm", a_MK, b, None, backend)
    return y_MN if a.dim() == 2 else y_MN.reshape(*a.shape[:-1], b.shape[1])


@checked
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """x (..., K) times weight (N, K) transposed, plus bias (N) added once in float32 before the rounding."""
    backend = choose_backend("linear", x, backend)
    check_tensors("linear", backend, {"x": x, "weight": weight, "bias": bias})
    check_dimensions("linear", "weight", weight, 2)
    x_MK = _rows("linear", "x", x)
    check_equal("linear", "the last axis of x", x_MK.shape[1], "the last axis of weight", weight.shape[1])
    if bias is not None:
        check_dimensions("linear", "bias", bias, 1)
        check_equal("linear", "the length of bias", bias.shape[0], "the first axis of weight", weight.shape[0])
    y_MN: Tensor = call("gemm", x_MK, weight.T, bias, backend)
    return y_MN if x.dim() == 2 else y_MN.reshape(*x.shape[:-1], weight.shape[0])


@checked
def matmul_accumulate_(accumulator: Tensor, a: Tensor, b: Tensor, *, backend: str | None = None) -> Tensor:
    """accumulator (M, N) float32 <- the chain a b resumed from it.

    The bits are those of one pass if the chain was left at any k (width 1) or at a multiple of 16 (matrix units)."""
    backend = choose_backend("matmul_accumulate_", a, backend)
    check_tensors("matmul_accumulate_", backend, {"a": a, "b": b})
    check_dimensions("matmul_accumulate_", "a", a, 2)
    check_dimensions("matmul_accumulate_", "b", b, 2)
    check_equal("matmul_accumulate_", "the last axis of a", a.shape[1], "the first axis of b", b.shape[0])
    check_accumulator("matmul_accumulate_", accumulator, (a.shape[0], b.shape[1]), {"a": a, "b": b})
    torch.ops.samebits.gemm_accumulate_(accumulator, a, b, backend)
    return accumulator


def _rows(operator: str, name: str, tensor: Tensor) -> Tensor:
    """Leading axes as one batch of rows."""
    if tensor.dim() < 1:
        raise ValueError(f"{operator}: {name} has shape (); allowed: at least 1 dimension")
    return tensor if tensor.dim() == 2 else tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1])


_kernel = partial(kernel_module, __name__, "matmul")


def _gemm(a: Tensor, b: Tensor, bias: Tensor | None, backend: str) -> Tensor:
    if a.shape[0] == 0 or b.shape[1] == 0:
        return a.new_empty(a.shape[0], b.shape[1])
    if a.shape[1] == 0:
        return a.new_zeros(a.shape[0], b.shape[1]) if bias is None else bias.expand(a.shape[0], -1) + 0.0
    result: Tensor = _kernel(backend, a.device).gemm(a, b, bias_N=bias)
    return result


def _gemm_accumulate_(accumulator: Tensor, a: Tensor, b: Tensor, backend: str) -> None:
    if accumulator.numel() and a.shape[1]:
        _kernel(backend, a.device).gemm(a, b, accumulator_MN=accumulator)


def _gemm_fake(a: Tensor, b: Tensor, bias: Tensor | None, backend: str) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def _gemm_accumulate_fake(accumulator: Tensor, a: Tensor, b: Tensor, backend: str) -> None:
    return None


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, str], output: Tensor) -> None:
    a, b, _, ctx.backend = inputs
    needs_a, needs_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)


def _backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    a_MK, b_KN = ctx.saved_tensors
    needs_a, needs_b, needs_bias = ctx.needs_input_grad[:3]
    gemm = partial(call, "gemm")
    da_MK = gemm(dy_MN, b_KN.T, None, ctx.backend) if needs_a else None
    # dW of linear arrives here transposed; computing it as (dy^T x)^T keeps weights' memory order in its gradient.
    db_KN = gemm(dy_MN.T, a_MK, None, ctx.backend).T if needs_b else None
    dbias_N = gemm(dy_MN.new_ones(1, dy_MN.shape[0]), dy_MN, None, ctx.backend).reshape(-1) if needs_bias else None
    return da_MK, db_KN, dbias_N, None


register(
    "gemm(Tensor a, Tensor b, Tensor? bias, str backend) -> Tensor",
    run=_gemm,
    fake=_gemm_fake,
    setup_context=_setup_context,
    backward=_backward,
    # Rows of a, or columns of b with their bias; the axis between them whole.
    cuts=[Cut({"a": 0}, (0,)), Cut({"b": 1, "bias": 0}, (1,))],
    flops=lambda a, b, *_: 2 * a.numel() * b.shape[1],
)
register(
    "gemm_accumulate_(Tensor(a!) accumulator, Tensor a, Tensor b, str backend) -> ()",
    run=_gemm_accumulate_,
    fake=_gemm_accumulate_fake,
    flops=lambda _, a, b, *__: 2 * a.numel() * b.shape[1],
)
