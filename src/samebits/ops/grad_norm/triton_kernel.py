"""Gradient norms by Triton: one program adds the squares of one piece, one more program adds the pieces' sums.

Knows nothing of validation or empty tensors; the public function does. Warps and blocks decide speed alone: no sum is
left to a reduction whose order the compiler would choose. The norm never leaves the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch, aligned, fold_by_halves
from samebits.ops._triton.sizes import cdiv
from samebits.ops.grad_norm.reference import PIECE

# Lane l of a piece adds the elements l, l + 256, l + 512, ...: 256 and 65536 decide bits and are part of the order.

SUM_LAUNCH: Final = RowLaunch(warps=2)
CLIP_LAUNCH: Final = RowLaunch(columns=1024, warps=4)


@triton.jit
def load_part(ptr, offsets, inside, ALIGNED: tl.constexpr):
    pointers = ptr + offsets
    if ALIGNED:
        pointers = tl.multiple_of(pointers, 16)
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def with_squares(lanes, x):
    """The lanes of a piece after 256 elements more. Outside x is +0 and a lane of squares is never -0: no change."""
    return tl.fma(x, x, lanes)


@triton.jit
def scale_of(norm, max_norm):
    """What gradients of this norm are multiplied with, where it is not at least 1. NaN of a norm that is no number."""
    return tl.div_rn(max_norm, norm + 1e-6)


@triton.jit
def magnitudes_of(x):
    """Magnitudes as whole numbers: larger where they are larger, and largest where x is NaN."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=["x_ptr", "sums_ptr", "largest_ptr"])
def grad_square_pieces(x_ptr, sums_ptr, largest_ptr, N: tl.int64, ALIGNED: tl.constexpr):
    """sums[piece] = the sum of the squares of x[65536 piece : 65536 (piece + 1)]; where asked for, the largest of
    `magnitudes_of` them, too."""
    # A multiple of 8 in a form that the compiler can see.
    length = N // 8 * 8 if ALIGNED else N
    first = tl.program_id(0).to(tl.int64) * 65536
    count = tl.minimum(length - first, 65536).to(tl.int32)
    lanes = tl.zeros((256,), dtype=tl.float32)
    largest = tl.zeros((256,), dtype=tl.int32)
    for start in range(0, count, 2048):
        # Eight loads at once: the chain of each lane is short, the way to memory is long.
        for part in tl.static_range(8):
            offsets = start + part * 256 + tl.arange(0, 256)
            x = load_part(x_ptr, first + offsets, offsets < count, ALIGNED)
            lanes = with_squares(lanes, x)
            if largest_ptr is not None:
                largest = tl.maximum(largest, magnitudes_of(x))
    total = fold_by_halves(tl.reshape(lanes, (1, 256)), 1)
    tl.store(sums_ptr + tl.program_id(0) + tl.arange(0, 1), total)
    if largest_ptr is not None:
        tl.store(largest_ptr + tl.program_id(0), tl.max(largest, 0))


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=["sums_ptr", "total_ptr"])
def grad_square_total(sums_ptr, total_ptr, N: tl.int32):
    """total = the sum of the pieces' sums, in lanes."""
    lanes = tl.zeros((256,), dtype=tl.float32)
    for start in range(0, N, 256):
        offsets = start + tl.arange(0, 256)
        # A sum of squares is never -0: the +0 of a missing piece changes nothing.
        lanes = lanes + tl.load(sums_ptr + offsets, mask=offsets < N, other=0.0)
    tl.store(total_ptr + tl.arange(0, 1), fold_by_halves(tl.reshape(lanes, (1, 256)), 1))


@triton.jit(do_not_specialize=["N", "max_norm"], do_not_specialize_on_alignment=["grad_ptr", "norm_ptr"])
def grad_norm_scale(grad_ptr, norm_ptr, N: tl.int64, max_norm: tl.float32, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """g = round(g * min(1, max_norm / (norm + 1e-6)))."""
    scale = scale_of(tl.load(norm_ptr), max_norm)
    # A norm that is not a number stays visible in every gradient; times 1 the bits stay.
    if not scale >= 1.0:
        length = N // 8 * 8 if ALIGNED else N
        offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < length
        scaled = (load_part(grad_ptr, offsets, inside, ALIGNED) * scale).to(grad_ptr.dtype.element_ty)
        pointers = grad_ptr + offsets
        if ALIGNED:
            pointers = tl.multiple_of(pointers, 16)
        tl.store(pointers, scaled, mask=inside)


def square_sum(tensors: Sequence[Tensor], *, launch: RowLaunch | None = None) -> Tensor:
    """The sum of all squares, one launch a tensor and one for the total."""
    launch, device = launch or forced_launch(RowLaunch) or SUM_LAUNCH, tensors[0].device
    counts = [cdiv(tensor.numel(), PIECE) for tensor in tensors]
    sums = torch.empty(sum(counts), dtype=torch.float32, device=device)
    total = torch.empty((), dtype=torch.float32, device=device)
    first = 0
    with on_device(total):
        for tensor, count in zip(tensors, counts, strict=True):
            pieces(tensor.view(-1), sums[first:], None, launch)
            first += count
        total_of(sums, total, launch)
    return total


def pieces(flat: Tensor, sums: Tensor, largest: Tensor | None, launch: RowLaunch = SUM_LAUNCH) -> None:
    """The sum of squares of every piece of a tensor, and its largest magnitude; its device is the current one."""
    run(
        grad_square_pieces,
        cdiv(flat.numel(), PIECE),
        (flat, sums, largest, flat.numel()),
        warps=launch.warps,
        stages=launch.stages,
        ALIGNED=aligned(flat),
    )


def total_of(sums: Tensor, total: Tensor, launch: RowLaunch = SUM_LAUNCH) -> None:
    """The sum of the sums of pieces."""
    run(grad_square_total, 1, (sums, total, sums.numel()), warps=launch.warps, stages=launch.stages)


def clip(grads: Sequence[Tensor], norm: Tensor, max_norm: float, *, launch: RowLaunch | None = None) -> None:
    """Every gradient times the scale, in place; the norm is read on the device."""
    launch = launch or forced_launch(RowLaunch) or CLIP_LAUNCH
    with on_device(norm):
        for grad in grads:
            flat = grad.view(-1)
            run(
                grad_norm_scale,
                cdiv(flat.numel(), launch.columns),
                (flat, norm, flat.numel(), max_norm),
                warps=launch.warps,
                stages=launch.stages,
                BLOCK=launch.columns,
                ALIGNED=aligned(flat),
            )
