"""Chains over rows by Gluon for Hopper: one warp loads, several make terms, one adds them, and none does two of these.

Knows no launch and no operator. A column is one chain of additions, each of which waits for the one before it: 4 cycles
a row, if nothing else is in the way. In the kernel of columns.py a warp computes terms, waits for its neighbours, and
then adds. The order, and so the bits, are the same: rows ascend, resumed from the accumulator, and who made a term, in
which block and when, decides no bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


@dataclass(frozen=True, slots=True)
class Constants:
    """What a compiled kernel is made for."""

    ROWS: int
    """Of a block: who adds waits once for each."""
    COLUMNS: int
    """Of a program."""
    STAGES: int
    """Blocks of operands on their way into shared memory."""
    SLOTS: int
    """Blocks of terms in shared memory."""
    WARPS: int
    """That make terms."""


@triton.constexpr_function
def constants(*values: Any) -> Constants:
    return Constants(*values)


@triton.constexpr_function
def terms_layout(columns: int, warps: int) -> gl.BlockedLayout:
    """Who makes which terms: four side by side a thread, which are stored at once."""
    return gl.BlockedLayout([1, 4], [128 // columns, columns // 4], [warps, 1], [1, 0])


@triton.constexpr_function
def sums_layout() -> gl.BlockedLayout:
    """Who has which sum: a thread each, and the same again where a program has fewer columns than a warp threads."""
    return gl.BlockedLayout([1, 1], [1, 32], [1, 1], [1, 0])


@triton.constexpr_function
def bytes_of(*described: Any) -> int:
    """Of a block of each operand that there is."""
    return sum(0 if each is None else each.block_type.nbytes for each in described)


@gluon.jit
def two_ways(NUMBER: gl.constexpr):
    """Barriers of so many places that are filled and emptied in turns, one partition at each end: told that a place is
    full, and told that it is free. Each of them is arrived at once a turn."""
    full = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for number in gl.static_range(NUMBER):
        mbarrier.init(full.index(number), count=1)
        mbarrier.init(free.index(number), count=1)
    return full, free


@gluon.jit
def load(described, shared, barriers, blocks, CONSTANTS: gl.constexpr):
    """The warp that loads: block after block, as soon as a stage is free. What does not exist is 0."""
    dy, x, mean, rstd = described
    dy_shared, x_shared, mean_shared, rstd_shared = shared
    ready, free = barriers
    column = gl.program_id(0) * CONSTANTS.COLUMNS
    for block in range(blocks):
        stage, row = block % CONSTANTS.STAGES, block * CONSTANTS.ROWS
        mbarrier.wait(free.index(stage), block // CONSTANTS.STAGES & 1 ^ 1)
        told = ready.index(stage)
        mbarrier.expect(told, bytes_of(dy, x, mean, rstd))
        tma.async_copy_global_to_shared(dy, [row, column], told, dy_shared.index(stage))
        if x is not None:
            tma.async_copy_global_to_shared(x, [row, column], told, x_shared.index(stage))
            tma.async_copy_global_to_shared(rstd, [0, row], told, rstd_shared.index(stage))
            if mean is not None:
                tma.async_copy_global_to_shared(mean, [0, row], told, mean_shared.index(stage))


@gluon.jit
def of_rows(shared, stage, TERMS: gl.constexpr, CONSTANTS: gl.constexpr):
    """A block's means or their like, one a row."""
    return shared.index(stage).reshape([CONSTANTS.ROWS]).load(gl.SliceLayout(1, TERMS))[:, None]


@gluon.jit
def make_block(block, shared, terms_shared, barriers, M, WHOLE: gl.constexpr, CONSTANTS: gl.constexpr):
    """A block of terms, and -0 for rows that do not exist, which changes no sum."""
    dy_shared, x_shared, mean_shared, rstd_shared = shared
    ready, free, made, added = barriers
    ROWS: gl.constexpr = CONSTANTS.ROWS
    COLUMNS: gl.constexpr = CONSTANTS.COLUMNS
    TERMS: gl.constexpr = terms_layout(COLUMNS, CONSTANTS.WARPS)
    stage, slot = block % CONSTANTS.STAGES, block % CONSTANTS.SLOTS
    mbarrier.wait(ready.index(stage), block // CONSTANTS.STAGES & 1)
    terms = dy_shared.index(stage).load(TERMS).to(gl.float32)
    if x_shared is not None:
        x = x_shared.index(stage).load(TERMS).to(gl.float32)
        if mean_shared is not None:
            x = x - of_rows(mean_shared, stage, TERMS, CONSTANTS)
        terms = terms * (x * of_rows(rstd_shared, stage, TERMS, CONSTANTS))
    mbarrier.arrive(free.index(stage))
    if not WHOLE:
        # +0 would turn a sum of -0 into +0. A literal -0.0 would arrive as +0.0.
        minus_zero = gl.full([ROWS, COLUMNS], -(2**31), gl.int32, TERMS).to(gl.float32, bitcast=True)
        exists = block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, TERMS)) < M
        terms = gl.where(exists[:, None], terms, minus_zero)
    mbarrier.wait(added.index(slot), block // CONSTANTS.SLOTS & 1 ^ 1)
    terms_shared.index(slot).store(terms)
    mbarrier.arrive(made.index(slot))


@gluon.jit
def make(shared, terms_shared, barriers, M, CONSTANTS: gl.constexpr):
    """The warps that make terms. The last block is apart: a choice for every term would be an eighth of their work."""
    whole = M // CONSTANTS.ROWS
    for block in range(whole):
        make_block(block, shared, terms_shared, barriers, M, True, CONSTANTS)
    if whole * CONSTANTS.ROWS < M:
        make_block(whole, shared, terms_shared, barriers, M, False, CONSTANTS)


@gluon.jit
def add(accumulator_ptr, terms_shared, barriers, blocks, H, CONSTANTS: gl.constexpr):
    """The warp that adds: a product with ones in float32 is a chain of fma(1, term, sum), exact additions in order of
    the rows. Terms of four rows are read at once, while those before them are added."""
    made, added = barriers
    SUMS: gl.constexpr = sums_layout()
    STEP: gl.constexpr = min(CONSTANTS.ROWS, 64)
    columns = gl.program_id(0) * CONSTANTS.COLUMNS + gl.arange(0, CONSTANTS.COLUMNS, gl.SliceLayout(0, SUMS))
    sums = gl.load(accumulator_ptr + columns, mask=columns < H, other=0.0)[None, :]
    ones = gl.full([1, STEP], 1.0, gl.float32, gl.DotOperandLayout(0, SUMS, 0))
    for block in range(blocks):
        slot = block % CONSTANTS.SLOTS
        mbarrier.wait(made.index(slot), block // CONSTANTS.SLOTS & 1)
        for step in gl.static_range(CONSTANTS.ROWS // STEP):
            rows = terms_shared.index(slot).slice(step * STEP, STEP, 0)
            sums = gl.dot_fma(ones, rows.load(gl.DotOperandLayout(1, SUMS, 0)), sums)
        mbarrier.arrive(added.index(slot))
    gl.store(accumulator_ptr + columns[None, :], sums, mask=(columns < H)[None, :])


@gluon.jit(do_not_specialize=["M", "H"], do_not_specialize_on_alignment=["accumulator_ptr"])
def specialised_column_chains(
    dy,
    x,
    mean,
    rstd,
    accumulator_ptr,
    M: gl.int32,
    H: gl.int32,
    ELEMENT: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    SLOTS: gl.constexpr,
    WARPS: gl.constexpr,
):
    """accumulator <- accumulator + round(dy * xhat), or + dy where there is no x; xhat = (x - mean) * rstd, or
    x * rstd where there is no mean."""
    CONSTANTS: gl.constexpr = constants(ROWS, COLUMNS, STAGES, SLOTS, WARPS)
    gl.static_assert(dy.dtype == ELEMENT)
    dy_shared = gl.allocate_shared_memory(ELEMENT, [STAGES, ROWS, COLUMNS], dy.layout)
    x_shared, mean_shared, rstd_shared = None, None, None
    if x is not None:
        x_shared = gl.allocate_shared_memory(ELEMENT, [STAGES, ROWS, COLUMNS], x.layout)
        rstd_shared = gl.allocate_shared_memory(rstd.dtype, [STAGES, 1, ROWS], rstd.layout)
        if mean is not None:
            mean_shared = gl.allocate_shared_memory(mean.dtype, [STAGES, 1, ROWS], mean.layout)
    # Rows one behind the other: 32 columns of one are all banks.
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    terms_shared = gl.allocate_shared_memory(gl.float32, [SLOTS, ROWS, COLUMNS], plain)
    ready, free = two_ways(STAGES)
    made, added = two_ways(SLOTS)
    shared = (dy_shared, x_shared, mean_shared, rstd_shared)
    blocks = gl.cdiv(M, ROWS)
    gl.warp_specialize(
        [
            (make, (shared, terms_shared, (ready, free, made, added), M, CONSTANTS)),
            (add, (accumulator_ptr, terms_shared, (made, added), blocks, H, CONSTANTS)),
            (load, ((dy, x, mean, rstd), shared, (ready, free), blocks, CONSTANTS)),
        ],
        [1, 1],
        [96, 96],
    )
