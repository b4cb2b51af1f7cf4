"""Clipping, the norm after it, AdamW, the largest weights and their roundings in one pass: each element is read once.

One program takes one piece of the norm's order, of many tensors in one launch, and keeps the lanes of its sum while it
steps the elements. What is computed is that of the operators' own functions. Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops._triton.rows import fold_by_halves
from samebits.ops.adamw.triton_kernel import stepped
from samebits.ops.adamw.triton_tables import memory_of, pointers_of
from samebits.ops.grad_norm.triton_kernel import magnitudes_of, scale_of, with_squares

# 256 and 65536 decide bits: they are lanes and pieces of ops/grad_norm.


@triton.jit
def loaded(grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, weight_ptr, offsets, inside, ALIGNED: tl.constexpr):
    """Gradients, both moments and weights; what does not exist is 0."""
    g = tl.load(pointers_of(grad_ptr, offsets, ALIGNED), mask=inside, other=0.0)
    m = tl.load(pointers_of(exp_avg_ptr, offsets, ALIGNED), mask=inside, other=0.0)
    v = tl.load(pointers_of(exp_avg_sq_ptr, offsets, ALIGNED), mask=inside, other=0.0)
    p = tl.load(pointers_of(weight_ptr, offsets, ALIGNED), mask=inside, other=0.0)
    return g, m, v, p


@triton.jit
def stored(
    param_ptr,
    exp_avg_ptr,
    exp_avg_sq_ptr,
    weight_ptr,
    offsets,
    inside,
    p,
    m,
    v,
    MASTER: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Both moments and weights, and their roundings where weights are masters."""
    tl.store(pointers_of(exp_avg_ptr, offsets, ALIGNED), m, mask=inside)
    tl.store(pointers_of(exp_avg_sq_ptr, offsets, ALIGNED), v, mask=inside)
    tl.store(pointers_of(weight_ptr, offsets, ALIGNED), p, mask=inside)
    if MASTER:
        tl.store(pointers_of(param_ptr, offsets, ALIGNED), p.to(param_ptr.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["max_norm", "decay", "minus_step_size", "root", "beta1", "rest1", "beta2", "rest2", "eps"],
    do_not_specialize_on_alignment=[
        "params_ptr",
        "grads_ptr",
        "exp_avgs_ptr",
        "exp_avg_sqs_ptr",
        "masters_ptr",
        "pieces_ptr",
        "sizes_ptr",
        "firsts_ptr",
        "owners_ptr",
        "norm_ptr",
        "sums_ptr",
        "largest_ptr",
    ],
)
def update_pieces(
    params_ptr,
    grads_ptr,
    exp_avgs_ptr,
    exp_avg_sqs_ptr,
    masters_ptr,
    pieces_ptr,
    sizes_ptr,
    firsts_ptr,
    owners_ptr,
    norm_ptr,
    sums_ptr,
    largest_ptr,
    max_norm: tl.float32,
    decay: tl.float32,
    minus_step_size: tl.float32,
    root: tl.float32,
    beta1: tl.float32,
    rest1: tl.float32,
    beta2: tl.float32,
    rest2: tl.float32,
    eps: tl.float32,
    PARAM: tl.constexpr,
    MASTER: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """A step of a piece by its gradients clipped, which are not stored; the sum of their squares; the largest weight.

    Tables as those of `adamw_step`, and the number of each tensor's first piece. Gradients are float32."""
    tensor = tl.load(owners_ptr + tl.program_id(0))
    program = tl.program_id(0) - tl.load(firsts_ptr + tensor)
    N = tl.load(sizes_ptr + tensor)
    # A multiple of 8 in a form that the compiler can see.
    length = N // 8 * 8 if ALIGNED else N
    first = program * 65536
    count = tl.minimum(length - first, 65536).to(tl.int32)
    param_ptr, grad_ptr = (
        memory_of(params_ptr, tensor, PARAM, ALIGNED),
        memory_of(grads_ptr, tensor, tl.float32, ALIGNED),
    )
    exp_avg_ptr = memory_of(exp_avgs_ptr, tensor, tl.float32, ALIGNED)
    exp_avg_sq_ptr = memory_of(exp_avg_sqs_ptr, tensor, tl.float32, ALIGNED)
    weight_ptr = memory_of(masters_ptr, tensor, tl.float32, ALIGNED) if MASTER else param_ptr
    quotient = scale_of(tl.load(norm_ptr), max_norm)
    # Times 1 the bits stay; a norm that is not a number stays visible in every gradient.
    scale = tl.where(quotient >= 1.0, 1.0, quotient)
    lanes = tl.zeros((256,), dtype=tl.float32)
    largest = tl.zeros((256,), dtype=tl.int32)
    for start in range(0, count, 512):
        # Two parts are asked for before one is stored: for all the compiler knows, that could be what is read next.
        near = start + tl.arange(0, 256)
        far = near + 256
        g0, m0, v0, p0 = loaded(grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, weight_ptr, first + near, near < count, ALIGNED)
        g1, m1, v1, p1 = loaded(grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, weight_ptr, first + far, far < count, ALIGNED)
        g0, g1 = g0 * scale, g1 * scale
        lanes = with_squares(with_squares(lanes, g0), g1)
        p0, m0, v0 = stepped(p0, g0, m0, v0, decay, minus_step_size, root, beta1, rest1, beta2, rest2, eps)
        p1, m1, v1 = stepped(p1, g1, m1, v1, decay, minus_step_size, root, beta1, rest1, beta2, rest2, eps)
        stored(
            param_ptr, exp_avg_ptr, exp_avg_sq_ptr, weight_ptr, first + near, near < count, p0, m0, v0, MASTER, ALIGNED
        )
        stored(
            param_ptr, exp_avg_ptr, exp_avg_sq_ptr, weight_ptr, first + far, far < count, p1, m1, v1, MASTER, ALIGNED
        )
        largest = tl.maximum(largest, tl.where(near < count, magnitudes_of(p0), 0))
        largest = tl.maximum(largest, tl.where(far < count, magnitudes_of(p1), 0))
    piece = tl.load(pieces_ptr + tensor) + program
    tl.store(sums_ptr + piece + tl.arange(0, 1), fold_by_halves(tl.reshape(lanes, (1, 256)), 1))
    tl.store(largest_ptr + piece, tl.max(largest, 0))


@triton.jit(do_not_specialize_on_alignment=["pieces_ptr", "borders_ptr", "largest_ptr"])
def largest_of_tensors(pieces_ptr, borders_ptr, largest_ptr):
    """The largest magnitude of each tensor, from those of its pieces, which any order of whole numbers gives; or 0."""
    tensor = tl.program_id(0)
    stop = tl.load(borders_ptr + tensor + 1)
    largest = tl.zeros((256,), dtype=tl.int32)
    for start in range(tl.load(borders_ptr + tensor), stop, 256):
        places = start + tl.arange(0, 256)
        largest = tl.maximum(largest, tl.load(pieces_ptr + places, mask=places < stop, other=0))
    tl.store(largest_ptr + tensor, tl.max(largest, 0))
