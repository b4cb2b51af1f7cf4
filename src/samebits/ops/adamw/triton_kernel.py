"""AdamW by Triton: one launch for all tensors of a kind, in which a program takes a block of one tensor.

Every element is computed alone. Knows nothing of validation or empty tensors; the public function does. The block and
the warps decide speed alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch
from samebits.ops.adamw.reference import Numbers
from samebits.ops.adamw.triton_tables import NUMBERS, Row, memory_of, pointers_of, tables

LAUNCH: Final = RowLaunch(columns=1024, warps=4)


@dataclass(frozen=True, slots=True)
class Kind:
    """What tensors of one launch have in common."""

    param: torch.dtype
    grad: torch.dtype
    aligned: bool


@triton.jit
def stepped(p, g, m, v, decay, minus_step_size, root, beta1, rest1, beta2, rest2, eps):
    """p = fma(-step_size, m / fma(sqrt(v), root, eps), p * decay), the moments updated before."""
    m = tl.fma(m, beta1, rest1 * g)
    v = tl.fma(v, beta2, (rest2 * g) * g)
    d = tl.fma(tl.sqrt_rn(v), root, eps)
    return tl.fma(tl.div_rn(m, d), minus_step_size, p * decay), m, v


@triton.jit(
    do_not_specialize=["decay", "minus_step_size", "root", "beta1", "rest1", "beta2", "rest2", "eps"],
    do_not_specialize_on_alignment=[
        "params_ptr",
        "grads_ptr",
        "exp_avgs_ptr",
        "exp_avg_sqs_ptr",
        "masters_ptr",
        "sizes_ptr",
        "firsts_ptr",
        "owners_ptr",
    ],
)
def adamw_step(
    params_ptr,
    grads_ptr,
    exp_avgs_ptr,
    exp_avg_sqs_ptr,
    masters_ptr,
    sizes_ptr,
    firsts_ptr,
    owners_ptr,
    decay: tl.float32,
    minus_step_size: tl.float32,
    root: tl.float32,
    beta1: tl.float32,
    rest1: tl.float32,
    beta2: tl.float32,
    rest2: tl.float32,
    eps: tl.float32,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    MASTER: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """A block of one of many tensors. With masters these are updated, and params are their roundings."""
    tensor = tl.load(owners_ptr + tl.program_id(0))
    program = tl.program_id(0) - tl.load(firsts_ptr + tensor)
    N = tl.load(sizes_ptr + tensor)
    # A multiple of 8 in a form that the compiler can see.
    length = N // 8 * 8 if ALIGNED else N
    offsets = program * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < length
    param_ptr, grad_ptr = memory_of(params_ptr, tensor, PARAM, ALIGNED), memory_of(grads_ptr, tensor, GRAD, ALIGNED)
    exp_avg_ptr = memory_of(exp_avgs_ptr, tensor, tl.float32, ALIGNED)
    exp_avg_sq_ptr = memory_of(exp_avg_sqs_ptr, tensor, tl.float32, ALIGNED)
    weight_ptr = memory_of(masters_ptr, tensor, tl.float32, ALIGNED) if MASTER else param_ptr
    g = tl.load(pointers_of(grad_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
    m = tl.load(pointers_of(exp_avg_ptr, offsets, ALIGNED), mask=inside, other=0.0)
    v = tl.load(pointers_of(exp_avg_sq_ptr, offsets, ALIGNED), mask=inside, other=0.0)
    p = tl.load(pointers_of(weight_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
    p, m, v = stepped(p, g, m, v, decay, minus_step_size, root, beta1, rest1, beta2, rest2, eps)
    tl.store(pointers_of(exp_avg_ptr, offsets, ALIGNED), m, mask=inside)
    tl.store(pointers_of(exp_avg_sq_ptr, offsets, ALIGNED), v, mask=inside)
    tl.store(pointers_of(weight_ptr, offsets, ALIGNED), p.to(weight_ptr.dtype.element_ty), mask=inside)
    if MASTER:
        tl.store(pointers_of(param_ptr, offsets, ALIGNED), p.to(param_ptr.dtype.element_ty), mask=inside)


def update(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    masters: Sequence[Tensor],
    numbers: Numbers,
    *,
    launch: RowLaunch | None = None,
) -> None:
    """One step of every tensor, in place, a launch for all that are of one kind."""
    launch = launch or forced_launch(RowLaunch) or LAUNCH
    with on_device(params[0]):
        for kind, rows in by_kind(params, grads, exp_avgs, exp_avg_sqs, masters).items():
            where = tables(rows, launch.columns, params[0].device)
            run(
                adamw_step,
                len(where[-1]),
                (*where, *numbers.values),
                warps=launch.warps,
                stages=launch.stages,
                PARAM=NUMBERS[kind.param],
                GRAD=NUMBERS[kind.grad],
                MASTER=bool(masters),
                BLOCK=launch.columns,
                ALIGNED=kind.aligned,
            )


def by_kind(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    masters: Sequence[Tensor],
) -> dict[Kind, list[Row]]:
    """The addresses of every tensor's memory, 0 where there is no master, and its size."""
    rows: dict[Kind, list[Row]] = defaultdict(list)
    for index, (param, grad) in enumerate(zip(params, grads, strict=True)):
        states = [exp_avgs[index], exp_avg_sqs[index], *masters[index : index + 1]]
        first, second, third, fourth, *fifth = (each.data_ptr() for each in (param, grad, *states))
        size, master = param.numel(), fifth[0] if fifth else 0
        aligned = size % 8 == 0 and (first | second | third | fourth | master) % 16 == 0
        rows[Kind(param.dtype, grad.dtype, aligned)].append((first, second, third, fourth, master, size))
    return rows
