"""AdamW of many tensors in one launch: a table says where each tensor is, another whose block a program's is.

Knows no launch. Every element is computed alone, by the operations of ops/adamw/triton_kernel.py."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops.adamw.triton_kernel import pointers_of


@triton.jit
def memory_of(table_ptr, column, NUMBER: tl.constexpr, ALIGNED: tl.constexpr):
    """Where one of a tensor's pieces of memory begins, for numbers of this kind."""
    pointer = tl.load(table_ptr + column).to(tl.pointer_type(NUMBER))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit(
    do_not_specialize=["decay", "minus_step_size", "root", "beta1", "rest1", "beta2", "rest2", "eps"],
    do_not_specialize_on_alignment=["table_ptr", "owners_ptr"],
)
def adamw_many(
    table_ptr,
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
    """p = fma(-step_size, m / fma(sqrt(v), root, eps), p * decay), the moments updated before.

    A row of the table: param, grad, exp_avg, exp_avg_sq, master, the number of elements, the first program."""
    program = tl.program_id(0)
    row = tl.load(owners_ptr + program).to(tl.int64) * 7
    N = tl.load(table_ptr + row + 5)
    # A multiple of 8 in a form that the compiler can see.
    length = N // 8 * 8 if ALIGNED else N
    offsets = (program - tl.load(table_ptr + row + 6)) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < length
    param_ptr, grad_ptr = memory_of(table_ptr, row, PARAM, ALIGNED), memory_of(table_ptr, row + 1, GRAD, ALIGNED)
    exp_avg_ptr = memory_of(table_ptr, row + 2, tl.float32, ALIGNED)
    exp_avg_sq_ptr = memory_of(table_ptr, row + 3, tl.float32, ALIGNED)
    weight_ptr = memory_of(table_ptr, row + 4, tl.float32, ALIGNED) if MASTER else param_ptr
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
    if MASTER:
        tl.store(pointers_of(param_ptr, offsets, ALIGNED), p.to(param_ptr.dtype.element_ty), mask=inside)
