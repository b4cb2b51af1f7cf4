"""What the kernels of the backward pass for Hopper share: products without an accumulator, marks, rows stored wide.

Knows no launch and no loads."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma

from samebits.ops.attention.triton_hopper_tiles import BLOCK, ROWS

GROUPS = gl.constexpr(2)
"""Groups of warps that compute: three would have too few registers."""


@gluon.jit
def product(left, right, LAYOUT: gl.constexpr):
    """Begins left times right transposed: 64 rows against 64 rows, a chain along the head."""
    nothing = gl.zeros((ROWS, BLOCK), gl.float32, LAYOUT)
    return warpgroup_mma(left, right.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def wait_for_block(loaded, ready, CONSTANTS: gl.constexpr):
    """The stage that holds the block, once it is there."""
    stage = loaded % CONSTANTS.STAGES
    mbarrier.wait(ready.index(stage), loaded // CONSTANTS.STAGES & 1)
    return stage


@gluon.jit
def scaled(sums, factor):
    """sums * factor, with +0 for a sum that underflowed to -0: zeros of unseen pairs may or may not have been added."""
    SUMS: gl.constexpr = sums.type.layout
    return gl.fma(sums, factor, gl.zeros((ROWS, sums.shape[1]), gl.float32, SUMS))


@gluon.jit
def any_not_finite(sums, inside):
    """Whether a row that exists has a sum that is not finite."""
    wrong = ~(gl.abs(gl.where(inside[:, None], sums, 0.0)) < float("inf"))
    return gl.max(gl.max(wrong.to(gl.int32), 1), 0) > 0


@gluon.jit
def store_wide(ptr, row, heads, first, length, values, HEAD: gl.constexpr):
    """Rounds 64 rows and stores those before `length`, eight elements a thread side by side, where the matrix units
    leave two. `row` is the first row's number, `heads` how many rows lie between two of them."""
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD, HEAD // 8], [4, 1], [1, 0])
    rounded = gl.convert_layout(values.to(ptr.dtype.element_ty), WIDE)
    rows, columns = gl.arange(0, ROWS, gl.SliceLayout(1, WIDE)), gl.arange(0, HEAD, gl.SliceLayout(0, WIDE))
    pointers = ptr + row * HEAD + (rows * (heads * HEAD))[:, None] + columns[None, :]
    gl.store(pointers, rounded, mask=(first + rows < length)[:, None])
