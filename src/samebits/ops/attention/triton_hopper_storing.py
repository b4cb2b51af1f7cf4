"""How attention's kernels for Hopper store rows: scaled, rounded, 16 bytes at a time; and whether one is not finite.

What is stored to is made by the launch, and begins where its memory does. Knows no launch."""

from __future__ import annotations

from triton import language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from samebits.ops.attention.triton_hopper_tiles import ROWS


@gluon.jit
def scaled(sums, factor):
    """sums * factor, with +0 for a sum that underflowed to -0: zeros of unseen pairs may or may not have been added."""
    SUMS: gl.constexpr = sums.type.layout
    return gl.fma(sums, factor, gl.zeros((ROWS, sums.shape[1]), gl.float32, SUMS))


@gluon.jit
def store_wide(ptr, row, heads, first, length, values, HEAD: gl.constexpr):
    """Rounds 64 rows and stores those before `length`, eight elements a thread side by side, where the matrix units
    leave two. `row` is the first row's number, `heads` how many rows lie between two of them."""
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD, HEAD // 8], [4, 1], [1, 0])
    rounded = gl.convert_layout(values.to(ptr.dtype.element_ty), WIDE)
    rows, columns = gl.arange(0, ROWS, gl.SliceLayout(1, WIDE)), gl.arange(0, HEAD, gl.SliceLayout(0, WIDE))
    pointers = ptr + row * HEAD + (rows * (heads * HEAD))[:, None] + columns[None, :]
    # Unless that is said, a thread stores two bytes at a time, and storing takes as long as some blocks.
    gl.store(gl.multiple_of(pointers, (16, 16)), rounded, mask=(first + rows < length)[:, None])


@gluon.jit
def larger_or_nan(left, right):
    """One instruction, with both magnitudes taken."""
    return gl.maximum(gl.abs(left), gl.abs(right), propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def any_not_finite(sums, inside):
    """Whether a row that exists has a sum that is not finite."""
    largest = gl.where(inside, gl.reduce(sums, 1, larger_or_nan), 0.0)
    return ~(gl.reduce(largest, 0, larger_or_nan) < float("inf"))
