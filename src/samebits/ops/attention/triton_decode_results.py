"""What attention of one query stores: a split's state or a result, and what rows of no sequence hold.

Knows no launch."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from samebits.ops.attention.triton_decode_places import WIDE
from samebits.ops.attention.triton_merge import inverse_of, logarithm_of

ROWS = gl.constexpr(64)
"""Rows of the output that a program looks through for those of no sequence."""


@gluon.jit
def finished(sums, total):
    """As triton_merge.py has it, heads across: the output before it is rounded."""
    # A sum that underflowed to -0 becomes +0, whether or not zeros of unseen keys were added to it.
    scaled = gl.fma(sums, inverse_of(total)[None, :], 0.0)
    return gl.where((total == 0.0)[None, :], 0.0, scaled)


@gluon.jit
def store(ptr, row, half, numbers, CONSTANTS: gl.constexpr):
    """One half of the columns of the first PACK heads."""
    LAYOUT: gl.constexpr = numbers.type.layout
    HEADS: gl.constexpr = CONSTANTS.HEADS
    heads = gl.arange(0, HEADS, gl.SliceLayout(0, LAYOUT))
    columns = half * WIDE + gl.arange(0, WIDE, gl.SliceLayout(1, LAYOUT))
    pointers = ptr + row * (CONSTANTS.HALVES * WIDE) + (heads * (CONSTANTS.HALVES * WIDE))[None, :] + columns[:, None]
    gl.store(pointers, numbers.to(ptr.dtype.element_ty), mask=(heads < CONSTANTS.PACK)[None, :])


@gluon.jit
def store_numbers(total, largest, results, row, states, place, c, CONSTANTS: gl.constexpr):
    """What is one number a head, by the program of the first columns: of a split's state, or of the result."""
    _, lse_ptr, _, totals_ptr, maxima_ptr = results
    _, _, _, _, split, part, _ = place
    HEADS: gl.constexpr = CONSTANTS.HEADS
    heads = gl.arange(0, HEADS, total.type.layout)
    inside = (heads < CONSTANTS.PACK) & (part == 0)
    if CONSTANTS.ALONE:
        row += states * split
        gl.store(totals_ptr + row + heads, total, mask=inside)
        gl.store(maxima_ptr + row + heads, largest, mask=inside)
    else:
        gl.store(lse_ptr + row + heads, logarithm_of(total, largest, c), mask=inside)


@gluon.jit
def store_sums(left, right, total, results, row, states, place, CONSTANTS: gl.constexpr):
    """A split's sums of values, or the result of all keys."""
    out_ptr, _, sums_ptr, _, _ = results
    _, _, _, _, split, part, _ = place
    if CONSTANTS.ALONE:
        row += states * split
        store(sums_ptr, row, part, left, CONSTANTS)
        if CONSTANTS.OWN == 2:
            store(sums_ptr, row, 1, right, CONSTANTS)
    else:
        store(out_ptr, row, part, finished(left, total), CONSTANTS)
        if CONSTANTS.OWN == 2:
            store(out_ptr, row, 1, finished(right, total), CONSTANTS)


@gluon.jit
def fill(first, tokens, heads, count, q_start_ptr, q_length_ptr, out_ptr, lse_ptr, CONSTANTS: gl.constexpr):
    """Rows of no sequence, as triton_uncovered.py has it: 0, and +inf in the logarithms."""
    HEAD: gl.constexpr = CONSTANTS.HALVES * WIDE
    LANES: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    rows = first + gl.arange(0, ROWS, gl.SliceLayout(1, LANES))
    covered = gl.zeros((ROWS,), gl.int32, gl.SliceLayout(1, LANES))
    for before in range(0, count, 16):
        sequences = before + gl.arange(0, 16, gl.SliceLayout(0, LANES))
        starts = gl.load(q_start_ptr + sequences, mask=sequences < count, other=0)
        ends = starts + gl.load(q_length_ptr + sequences, mask=sequences < count, other=0)
        has = (rows[:, None] >= starts[None, :]) & (rows[:, None] < ends[None, :])
        covered = gl.maximum(covered, gl.max(has.to(gl.int32), 1))
    uncovered = (covered == 0) & (rows < tokens)
    if gl.max(uncovered.to(gl.int32), 0) > 0:
        columns = gl.arange(0, HEAD, gl.SliceLayout(0, LANES))
        nothing = gl.full((ROWS,), float("inf"), gl.float32, gl.SliceLayout(1, LANES))
        for head in range(heads):
            places = rows.to(gl.int64) * heads + head
            gl.store(lse_ptr + places, nothing, mask=uncovered)
            zeros = gl.zeros((ROWS, HEAD), out_ptr.dtype.element_ty, LANES)
            gl.store(out_ptr + (places * HEAD)[:, None] + columns[None, :], zeros, mask=uncovered[:, None])
