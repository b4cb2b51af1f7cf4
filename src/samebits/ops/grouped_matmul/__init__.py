"""The grouped product of a mixture of experts: `grouped_matmul`, its gradients, and the resumed gradient
`grouped_matmul_accumulate_`.

Each output is one chain over K, in matmul's own order: y[m] has the bits of matmul(x[m:m+1], weight[expert[m]]),
wherever row m stands and whatever stands beside it. dX is a chain over N alike. dW of an expert is one chain over its
rows in the order of the batch: the bits of matmul over those rows alone. It may stop and go on after any row where the
chain takes one product at a time (on the CPU, and in float32); where a matrix unit takes 16, after a multiple of 16
rows of each expert, which rows of zeros can fill up to.

The operators below the public functions take groups instead of an expert's number a row: `rows`, the rows in the order
of their experts (None: they are in that order already), and `ends`, where each expert's rows end among them. That is
what `offs` is to torch._grouped_mm. Rows beyond the last end belong to nobody: they give zeros."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import (
    check_accumulator,
    check_dimensions,
    check_equal,
    check_tensors,
    choose_backend,
    short,
)
from samebits.ops.backends import kernel_module
from samebits.ops.registering import call, register


@checked
def grouped_matmul(x: Tensor, weight: Tensor, expert: Tensor, *, backend: str | None = None) -> Tensor:
    """x (M, K) times weight[expert[m]] for every row m, one chain over K an output, rounded once.

    weight is (E, K, N) of any strides; expert (M) holds whole numbers from 0 to E - 1, in any order."""
    backend = choose_backend("grouped_matmul", x, backend)
    check_tensors("grouped_matmul", backend, {"x": x, "weight": weight})
    check_dimensions("grouped_matmul", "x", x, 2)
    check_dimensions("grouped_matmul", "weight", weight, 3)
    check_equal("grouped_matmul", "the last axis of x", x.shape[1], "the second axis of weight", weight.shape[1])
    _check_expert("grouped_matmul", expert, x, weight.shape[0])
    rows, ends = call("expert_groups", expert, weight.shape[0], "grouped_matmul")
    y: Tensor = call("grouped_gemm", x, weight, rows, ends, backend)
    return y


@checked
def grouped_matmul_accumulate_(
    accumulator: Tensor, x: Tensor, dy: Tensor, expert: Tensor, *, backend: str | None = None
) -> Tensor:
    """accumulator (E, K, N) float32 <- each expert's chain of x^T dy over its rows, resumed from it.

    x is (M, K), dy (M, N). The bits are those of one pass if every expert's chain was left at any row (width 1) or
    after a multiple of 16 of its rows (matrix units)."""
    operator = "grouped_matmul_accumulate_"
    backend = choose_backend(operator, x, backend)
    check_tensors(operator, backend, {"x": x, "dy": dy})
    check_dimensions(operator, "x", x, 2)
    check_dimensions(operator, "dy", dy, 2)
    check_equal(operator, "the first axis of x", x.shape[0], "the first axis of dy", dy.shape[0])
    check_dimensions(operator, "accumulator", accumulator, 3)
    experts = accumulator.shape[0]
    check_accumulator(operator, accumulator, (experts, x.shape[1], dy.shape[1]), {"x": x, "dy": dy, "expert": expert})
    _check_expert(operator, expert, x, experts)
    rows, ends = call("expert_groups", expert, experts, operator)
    torch.ops.samebits.grouped_gemm_accumulate_(accumulator, x, dy, rows, ends, backend)
    return accumulator


def _check_expert(operator: str, expert: Tensor, x: Tensor, experts: int) -> None:
    """What can be seen without reading the numbers."""
    if expert.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{operator}: expert has dtype {short(expert.dtype)}; allowed: int64, int32")
    if expert.device != x.device:
        raise ValueError(f"{operator}: expert is on {expert.device}, x on {x.device}; they must agree")
    check_dimensions(operator, "expert", expert, 1)
    check_equal(operator, "the length of expert", expert.shape[0], "the first axis of x", x.shape[0])
    if experts < 1:
        raise ValueError(f"{operator}: there are {experts} experts; allowed: at least 1")


def _expert_groups(expert: Tensor, experts: int, operator: str) -> tuple[Tensor, Tensor]:
    """The rows by expert, each expert's in the order of the batch, and where each expert's end."""
    ordered_M, rows_M = torch.sort(expert.to(torch.int64), stable=True)
    if expert.shape[0] and not (expert.is_cuda and torch.cuda.is_current_stream_capturing()):
        # The one place where numbers are read back; a graph that is being captured cannot.
        lowest, highest = torch.stack([ordered_M[0], ordered_M[-1]]).tolist()
        if lowest < 0 or highest >= experts:
            place = int(torch.nonzero((expert < 0) | (expert >= experts))[0])
            raise ValueError(
                f"{operator}: expert {int(expert[place])} at row {place}, there are {experts};"
                f" allowed: 0 to {experts - 1}"
            )
    ends_E = torch.searchsorted(ordered_M, torch.arange(experts, device=expert.device), right=True)
    return rows_M, ends_E


_kernel = partial(kernel_module, __name__, "grouped_matmul")


def _grouped_gemm(x: Tensor, weight: Tensor, rows: Tensor | None, ends: Tensor, backend: str) -> Tensor:
    y_MN = x.new_zeros(x.shape[0], weight.shape[2])
    if y_MN.numel() and x.shape[1]:
        _kernel(backend, x.device).forward(x, weight, rows, _plain(ends), y_MN)
    return y_MN


def _grouped_gemm_dweight(x: Tensor, dy: Tensor, rows: Tensor | None, ends: Tensor, backend: str) -> Tensor:
    dweight_EKN = x.new_zeros(ends.shape[0], x.shape[1], dy.shape[1])
    if dweight_EKN.numel() and x.shape[0]:
        _kernel(backend, x.device).dweight(x, dy, rows, _plain(ends), dweight_EKN, resumed=False)
    return dweight_EKN


def _grouped_gemm_accumulate_(
    accumulator: Tensor, x: Tensor, dy: Tensor, rows: Tensor | None, ends: Tensor, backend: str
) -> None:
    if accumulator.numel() and x.shape[0]:
        _kernel(backend, x.device).dweight(x, dy, rows, _plain(ends), accumulator, resumed=True)


def _plain(ends: Tensor) -> Tensor:
    return ends.to(torch.int64).contiguous()


def _expert_groups_fake(expert: Tensor, experts: int, operator: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(expert, dtype=torch.int64), expert.new_empty(experts, dtype=torch.int64)


def _grouped_gemm_fake(x: Tensor, weight: Tensor, rows: Tensor | None, ends: Tensor, backend: str) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


def _grouped_gemm_dweight_fake(x: Tensor, dy: Tensor, rows: Tensor | None, ends: Tensor, backend: str) -> Tensor:
    return x.new_empty(ends.shape[0], x.shape[1], dy.shape[1])


def _grouped_gemm_accumulate_fake(
    accumulator: Tensor, x: Tensor, dy: Tensor, rows: Tensor | None, ends: Tensor, backend: str
) -> None:
    return None


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor, str], output: Tensor) -> None:
    x, weight, rows, ends, ctx.backend = inputs
    needs_x, needs_weight = ctx.needs_input_grad[:2]
    # Whether the weight's memory is that of linear's (N, K): its gradient gets the same.
    ctx.transposed = weight.stride(1) < weight.stride(2)
    ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None, rows, ends)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
    x, weight, rows, ends = ctx.saved_tensors
    needs_x, needs_weight = ctx.needs_input_grad[:2]
    dx = call("grouped_gemm", dy, weight.transpose(1, 2), rows, ends, ctx.backend) if needs_x else None
    dweight = None
    if needs_weight and ctx.transposed:
        dweight = call("grouped_gemm_dweight", dy, x, rows, ends, ctx.backend).transpose(1, 2)
    elif needs_weight:
        dweight = call("grouped_gemm_dweight", x, dy, rows, ends, ctx.backend)
    return dx, dweight, None, None, None


register(
    "expert_groups(Tensor expert, SymInt experts, str operator) -> (Tensor, Tensor)",
    run=_expert_groups,
    fake=_expert_groups_fake,
)
register(
    "grouped_gemm(Tensor x, Tensor weight, Tensor? rows, Tensor ends, str backend) -> Tensor",
    run=_grouped_gemm,
    fake=_grouped_gemm_fake,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "grouped_gemm_dweight(Tensor x, Tensor dy, Tensor? rows, Tensor ends, str backend) -> Tensor",
    run=_grouped_gemm_dweight,
    fake=_grouped_gemm_dweight_fake,
)
register(
    "grouped_gemm_accumulate_(Tensor(a!) accumulator, Tensor x, Tensor dy, Tensor? rows, Tensor ends, str backend)"
    " -> ()",
    run=_grouped_gemm_accumulate_,
    fake=_grouped_gemm_accumulate_fake,
)
