"""AdamW by Triton: one program takes a block of one tensor; every element is computed alone.

Knows nothing of validation or empty tensors; the public function does. The block and the warps decide speed alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch, aligned
from samebits.ops._triton.sizes import cdiv
from samebits.ops.adamw.reference import Numbers

LAUNCH: Final = RowLaunch(columns=1024, warps=4)


@triton.jit
def pointers_of(ptr, offsets, ALIGNED: tl.constexpr):
    pointers = ptr + offsets
    if ALIGNED:
        pointers = tl.multiple_of(pointers, 16)
    return pointers


@triton.jit(
    do_not_specialize=["N", "decay", "minus_step_size", "root", "beta1", "rest1", "beta2", "rest2", "eps"],
    do_not_specialize_on_alignment=["param_ptr", "grad_ptr", "exp_avg_ptr", "exp_avg_sq_ptr", "master_ptr"],
)
def adamw_step(
    param_ptr,
    grad_ptr,
    exp_avg_ptr,
    exp_avg_sq_ptr,
    master_ptr,
    N: tl.int64,
    decay: tl.float32,
    minus_step_size: tl.float32,
    root: tl.float32,
    beta1: tl.float32,
    rest1: tl.float32,
    beta2: tl.float32,
    rest2: tl.float32,
    eps: tl.float32,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """p = fma(-step_size, m / fma(sqrt(v), root, eps), p * decay), the moments updated before."""
    # A multiple of 8 in a form that the compiler can see.
    length = N // 8 * 8 if ALIGNED else N
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < length
    weight_ptr = param_ptr if master_ptr is None else master_ptr
    g = tl.load(pointers_of(grad_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
    m = tl.load(pointers_of(exp_avg_ptr, offsets, ALIGNED), mask=inside, other=0.0)
    v = tl.load(pointers_of(exp_avg_sq_ptr, offsets, ALIGNED), mask=inside, other=0.0)
    p = tl.load(pointers_of(weight_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
    m = tl.fma(m, beta1, rest1 * g)
    v = tl.fma(v, beta2, (rest2 * g) * g)
    d = tl.fma(tl.sqrt_rn(v), root, eps)
    p = tl.fma(tl.div_rn(m, d), minus_step_size, p * decay)
    tl.store(pointers_of(exp_avg_ptr, offsets, ALIGNED), m, mask=inside)
    tl.store(pointers_of(exp_avg_sq_ptr, offsets, ALIGNED), v, mask=inside)
    tl.store(pointers_of(weight_ptr, offsets, ALIGNED), p.to(weight_ptr.dtype.element_ty), mask=inside)
    if master_ptr is not None:
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
    """One step of every tensor, in place, one launch each."""
    launch = launch or forced_launch(RowLaunch) or LAUNCH
    with on_device(params[0]):
        for index, param in enumerate(params):
            master = masters[index].view(-1) if masters else None
            flat = [tensor.view(-1) for tensor in (param, grads[index], exp_avgs[index], exp_avg_sqs[index])]
            size = param.numel()
            run(
                adamw_step,
                cdiv(size, launch.columns),
                (*flat, master, size, *numbers.values),
                warps=launch.warps,
                stages=launch.stages,
                BLOCK=launch.columns,
                ALIGNED=aligned(*flat, master),
            )
