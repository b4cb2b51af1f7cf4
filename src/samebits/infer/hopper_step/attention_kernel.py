"""Attention of one query a sequence over keys in pages, by Gluon: keys of earlier steps come before the wait.

One warp copies pages into shared memory by the tensor memory accelerator, four compute (attention_softmax.py). Knows no
launch."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.infer.hopper_step.attention_softmax import WIDE, attend, constants, finished
from samebits.ops.attention.triton_hopper_tiles import BLOCK, barriers_of


@gluon.jit
def rows_of(block, pages_ptr, held, CONSTANTS: gl.constexpr):
    """Where in memory the pages of a block begin; behind the last key, the page of that key once more."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    PAGE: gl.constexpr = CONSTANTS.PAGE
    keys = block * BLOCK + gl.arange(0, BLOCK // PAGE, LANES) * PAGE
    keys = gl.minimum(keys, held // PAGE * PAGE)
    return gl.load(pages_ptr + keys // CONSTANTS.PAGE_SIZE) * CONSTANTS.PAGE_SIZE + keys % CONSTANTS.PAGE_SIZE


@gluon.jit
def load_block(rows, number, column, described, shared, ready, CONSTANTS: gl.constexpr):
    """Begins to copy one block's keys and values, page by page."""
    k_described, v_described = described
    k_pages, v_pages = shared
    HALVES: gl.constexpr = CONSTANTS.HALVES
    PAGES: gl.constexpr = BLOCK // CONSTANTS.PAGE
    stage = number % CONSTANTS.STAGES
    mbarrier.expect(ready.index(stage), 2 * HALVES * PAGES * k_described.block_type.nbytes)
    lanes = gl.arange(0, PAGES, rows.type.layout)
    for page in gl.static_range(PAGES):
        row = gl.max(gl.where(lanes == page, rows, 0), 0)
        for half in gl.static_range(HALVES):
            at, place = [row, column + half * WIDE], (stage * HALVES + half) * PAGES + page
            tma.async_copy_global_to_shared(k_described, at, ready.index(stage), k_pages.index(place))
            tma.async_copy_global_to_shared(v_described, at, ready.index(stage), v_pages.index(place))


@gluon.jit
def load(described, shared, barriers, pages_ptr, place, CONSTANTS: gl.constexpr):
    """The warp that loads: blocks of earlier steps' keys while stages are free, the wait, queries, other blocks."""
    q_described, k_described, v_described = described
    q_shared, k_pages, v_pages = shared
    q_ready, ready, free = barriers
    line, column, held, start, end = place
    gdc_launch_dependents()
    first = gl.maximum(gl.minimum(gl.minimum(held // BLOCK, end), start + CONSTANTS.STAGES), start)
    for block in range(start, first):
        here = rows_of(block, pages_ptr, held, CONSTANTS)
        load_block(here, block - start, column, (k_described, v_described), (k_pages, v_pages), ready, CONSTANTS)
    rows = rows_of(first, pages_ptr, held, CONSTANTS)
    # Before this line: tables, and keys and values of earlier steps, which no kernel of this step writes.
    gdc_wait()
    if end > start:
        HALVES: gl.constexpr = CONSTANTS.HALVES
        mbarrier.expect(q_ready, HALVES * q_described.block_type.nbytes)
        for half in gl.static_range(HALVES):
            tma.async_copy_global_to_shared(q_described, [line, half * WIDE], q_ready, q_shared.index(half))
        for block in range(first, end):
            # Asked for before it is needed.
            following = rows_of(block + 1, pages_ptr, held, CONSTANTS)
            number = block - start
            mbarrier.wait(free.index(number % CONSTANTS.STAGES), number // CONSTANTS.STAGES & 1 ^ 1)
            load_block(rows, number, column, (k_described, v_described), (k_pages, v_pages), ready, CONSTANTS)
            rows = following


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
def compute(shared, barriers, results, place, states, c, CONSTANTS: gl.constexpr):
    """The warps that compute: a split's softmax, and its result or its state."""
    q_shared, k_shared, v_shared, weights_shared = shared
    q_ready, ready, free = barriers
    out_ptr, sums_ptr, totals_ptr, maxima_ptr = results
    line, _column, held, start, end = place
    # Results lie in memory that a kernel before may still read.
    gdc_wait()
    if end > start:
        mbarrier.wait(q_ready, 0)
        left, right, total, largest = attend(
            start, end, held, q_shared, (k_shared, v_shared), weights_shared, (ready, free), c, CONSTANTS
        )
        row = line.to(gl.int64)
        if CONSTANTS.ALONE:
            row += states * (start // CONSTANTS.SPLIT)
            HEADS: gl.constexpr = CONSTANTS.HEADS
            heads = gl.arange(0, HEADS, total.type.layout)
            gl.store(totals_ptr + row + heads, total, mask=heads < CONSTANTS.PACK)
            gl.store(maxima_ptr + row + heads, largest, mask=heads < CONSTANTS.PACK)
            store(sums_ptr, row, 0, left, CONSTANTS)
            if CONSTANTS.HALVES == 2:
                store(sums_ptr, row, 1, right, CONSTANTS)
        else:
            store(out_ptr, row, 0, finished(left, total), CONSTANTS)
            if CONSTANTS.HALVES == 2:
                store(out_ptr, row, 1, finished(right, total), CONSTANTS)


@gluon.jit(
    do_not_specialize=["pages_row", "states", "heads", "splits", "c"],
    do_not_specialize_on_alignment=["out_ptr", "sums_ptr", "totals_ptr", "maxima_ptr", "positions_ptr", "pages_ptr"],
)
def attention_of_one_query(
    q_described,
    k_described,
    v_described,
    out_ptr,
    sums_ptr,
    totals_ptr,
    maxima_ptr,
    positions_ptr,
    pages_ptr,
    pages_row: gl.int64,
    states: gl.int64,
    heads: gl.int32,
    splits: gl.int32,
    c: gl.float32,
    HALVES: gl.constexpr,
    PACK: gl.constexpr,
    HEADS: gl.constexpr,
    PAGE: gl.constexpr,
    PAGE_SIZE: gl.constexpr,
    STAGES: gl.constexpr,
    SPLIT: gl.constexpr,
    ALONE: gl.constexpr,
):
    """PACK query heads of one sequence against one split of its keys, the last of which is at its position."""
    CONSTANTS: gl.constexpr = constants(HALVES, PACK, HEADS, PAGE, PAGE_SIZE, STAGES, SPLIT, ALONE)
    LAYOUT: gl.constexpr = k_described.layout
    dtype: gl.constexpr = k_described.dtype
    q_shared = gl.allocate_shared_memory(dtype, [HALVES, HEADS, WIDE], q_described.layout)
    weights_shared = gl.allocate_shared_memory(dtype, [2, HEADS, BLOCK], q_described.layout)
    k_shared = gl.allocate_shared_memory(dtype, [STAGES * HALVES, BLOCK, WIDE], LAYOUT)
    v_shared = gl.allocate_shared_memory(dtype, [STAGES * HALVES, BLOCK, WIDE], LAYOUT)
    PAGES: gl.constexpr = STAGES * HALVES * BLOCK // PAGE
    k_pages = k_shared._reinterpret(dtype, [PAGES, PAGE, WIDE], LAYOUT)
    v_pages = v_shared._reinterpret(dtype, [PAGES, PAGE, WIDE], LAYOUT)
    q_ready, ready, free = barriers_of(1, 1).index(0), barriers_of(STAGES, 1), barriers_of(STAGES, 1)
    barriers = (q_ready, ready, free)
    split, line = gl.program_id(0) % splits, gl.program_id(0) // splits * PACK
    sequence = line // heads
    held = gl.load(positions_ptr + sequence).to(gl.int32)
    start = split * SPLIT
    end = gl.minimum(held // BLOCK + 1, start + SPLIT)
    place = (line, line % heads // PACK * (HALVES * WIDE), held, start, end)
    results = (out_ptr, sums_ptr, totals_ptr, maxima_ptr)
    described = (q_described, k_described, v_described)
    gl.warp_specialize(
        [
            (compute, ((q_shared, k_shared, v_shared, weights_shared), barriers, results, place, states, c, CONSTANTS)),
            (
                load,
                (described, (q_shared, k_pages, v_pages), barriers, pages_ptr + sequence * pages_row, place, CONSTANTS),
            ),
        ],
        [1],
        [40],
    )
