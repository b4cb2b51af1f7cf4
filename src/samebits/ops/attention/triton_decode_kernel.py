"""Attention of one query at a time over many keys, in pages or side by side, by Gluon: programs of a key head's heads.

Two warps copy keys and values into shared memory by the tensor memory accelerator, four make weights of keys
(triton_decode_softmax.py), and four sum values (triton_decode_values.py). Where a kernel before may still run
(infer/hopper_step), keys of earlier steps come before the wait for it. Knows no launch."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.ops.attention.triton_decode_places import WIDE, constants, place_of, rows_of, wait_for
from samebits.ops.attention.triton_decode_results import ROWS, fill, store_numbers, store_sums
from samebits.ops.attention.triton_decode_softmax import attend
from samebits.ops.attention.triton_decode_values import sum_values
from samebits.ops.attention.triton_hopper_tiles import BLOCK, barriers_of


@gluon.jit
def load_block(rows, number, count, column, described, pages, ready, HALVES: gl.constexpr, CONSTANTS: gl.constexpr):
    """Begins to copy one block's keys, or its values, page by page: the one of this number, of so many."""
    STEP: gl.constexpr = CONSTANTS.STEP
    PAGES: gl.constexpr = BLOCK // CONSTANTS.PAGE
    stage, there = number % CONSTANTS.STAGES, ready.index(number // STEP % CONSTANTS.TURNS)
    mbarrier.expect(there, HALVES * PAGES * described.block_type.nbytes)
    if number == count - 1:
        # Blocks that the last step does not have.
        for _ in range(number % STEP + 1, STEP):
            mbarrier.arrive(there)
    lanes = gl.arange(0, PAGES, rows.type.layout)
    for page in gl.static_range(PAGES):
        row = gl.max(gl.where(lanes == page, rows, 0), 0)
        for half in gl.static_range(HALVES):
            at, place = [row, column + half * WIDE], (stage * HALVES + half) * PAGES + page
            tma.async_copy_global_to_shared(described, at, there, pages.index(place))


@gluon.jit
def load(described, pages, barriers, pages_ptr, column, place, view, HALVES: gl.constexpr, CONSTANTS: gl.constexpr):
    """A warp that loads: blocks of earlier steps' keys while stages are free, the wait, other blocks."""
    ready, free = barriers
    _, _, _, k_row, _, _, _ = place
    start, _, _, end, _, k_length, _ = view
    first = start
    if CONSTANTS.WAITS:
        gdc_launch_dependents()
        earlier = gl.minimum((k_length - 1) // BLOCK, end)
        first = gl.maximum(gl.minimum(earlier, start + CONSTANTS.STAGES), start)
        for block in range(start, first):
            here = rows_of(block, pages_ptr, k_row, k_length, CONSTANTS)
            load_block(here, block - start, end - start, column, described, pages, ready, HALVES, CONSTANTS)
    rows = rows_of(first, pages_ptr, k_row, k_length, CONSTANTS)
    if CONSTANTS.WAITS:
        # Before this line: tables, and keys and values of earlier steps, which no kernel of this step writes.
        gdc_wait()
    for block in range(first, end):
        # Asked for before it is needed.
        following = rows_of(block + 1, pages_ptr, k_row, k_length, CONSTANTS)
        number = block - start
        if number >= CONSTANTS.STAGES:
            wait_for((number - CONSTANTS.STAGES) // CONSTANTS.STEP, free, CONSTANTS)
        load_block(rows, number, end - start, column, described, pages, ready, HALVES, CONSTANTS)
        rows = following


@gluon.jit
def load_queries(q_ptr, q_token, q_head, place, q_shared, CONSTANTS: gl.constexpr):
    """The query's heads into shared memory; heads that there are not are 0."""
    HALVES: gl.constexpr = CONSTANTS.HALVES
    row, _, key_head, _, _, _, _ = place
    LANES: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    HEADS: gl.constexpr = CONSTANTS.HEADS
    heads = gl.arange(0, HEADS, gl.SliceLayout(1, LANES))
    columns = gl.arange(0, WIDE, gl.SliceLayout(0, LANES))
    q_ptr += row * q_token + (key_head * CONSTANTS.PACK).to(gl.int64) * q_head
    for half in gl.static_range(HALVES):
        # A multiple of 8 in a form that the compiler can see.
        pointers = q_ptr + half * WIDE + (heads * q_head // 8 * 8)[:, None] + columns[None, :]
        pointers = gl.multiple_of(pointers, [16, 16])
        q_shared.index(half).store(gl.load(pointers, mask=(heads < CONSTANTS.PACK)[:, None], other=0.0))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def weigh(q, k_shared, handed, passed_on, barriers, results, numbers, place, view, c, CONSTANTS: gl.constexpr):
    """The warps of the softmax: a split's weights, their sums and maxima."""
    q_ptr, q_token, q_head, q_shared = q
    total_shared, total_ready = passed_on
    states, heads = numbers[0], numbers[1]
    query_row, _, key_head, _, _, _, covered = place
    start, _, _, end, _, _, _ = view
    HEADS: gl.constexpr = CONSTANTS.HEADS
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 16])
    if CONSTANTS.WAITS:
        # Queries are written by a kernel before, and results lie in memory that one may still read.
        gdc_wait()
    row = query_row * heads + key_head * CONSTANTS.PACK
    if end > start:
        load_queries(q_ptr, q_token, q_head, place, q_shared, CONSTANTS)
        total, largest = attend(view, q_shared, k_shared, handed, barriers, c, CONSTANTS)
        total_shared.store(total)
        mbarrier.arrive(total_ready)
        store_numbers(total, largest, results, row, states, place, c, CONSTANTS)
    elif covered:
        # No key is seen: what a softmax starts with.
        total = gl.zeros((HEADS,), gl.float32, gl.SliceLayout(0, SUMS))
        largest = gl.full((HEADS,), float("-inf"), gl.float32, gl.SliceLayout(0, SUMS))
        store_numbers(total, largest, results, row, states, place, c, CONSTANTS)


@gluon.jit
def add_up(v_shared, handed, passed_on, barriers, results, numbers, place, view, CONSTANTS: gl.constexpr):
    """The warps that sum values, and fill rows of no sequence."""
    total_shared, total_ready = passed_on
    states, heads, attending, tokens, count, q_start_ptr, q_length_ptr = numbers
    query_row, _, key_head, _, _, _, covered = place
    start, _, _, end, _, _, _ = view
    HEADS: gl.constexpr = CONSTANTS.HEADS
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 16])
    row = query_row * heads + key_head * CONSTANTS.PACK
    if CONSTANTS.WAITS:
        gdc_wait()
    if end > start:
        left, right = sum_values(view, v_shared, handed, barriers, CONSTANTS)
        mbarrier.wait(total_ready, 0)
        total = total_shared.load(gl.SliceLayout(0, SUMS))
        store_sums(left, right, total, results, row, states, place, CONSTANTS)
    elif covered:
        none = gl.zeros((WIDE, HEADS), gl.float32, SUMS)
        total = gl.zeros((HEADS,), gl.float32, gl.SliceLayout(0, SUMS))
        store_sums(none, none, total, results, row, states, place, CONSTANTS)
    if not CONSTANTS.WAITS:
        filling = gl.program_id(0) - attending
        if filling >= 0:
            fill(filling * ROWS, tokens, heads, count, q_start_ptr, q_length_ptr, results[0], results[1], CONSTANTS)


@gluon.jit(
    do_not_specialize=[
        "q_token",
        "q_head",
        "pages_row",
        "states",
        "attending",
        "tokens",
        "count",
        "key_heads",
        "longest_query",
        "splits",
        "window",
        "c",
    ],
    do_not_specialize_on_alignment=[
        "q_ptr",
        "out_ptr",
        "lse_ptr",
        "sums_ptr",
        "totals_ptr",
        "maxima_ptr",
        "positions_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
        "pages_ptr",
    ],
)
def attention_of_one_query(
    k_described,
    v_described,
    q_ptr,
    out_ptr,
    lse_ptr,
    sums_ptr,
    totals_ptr,
    maxima_ptr,
    positions_ptr,
    q_start_ptr,
    q_length_ptr,
    k_start_ptr,
    k_length_ptr,
    pages_ptr,
    q_token: gl.int64,
    q_head: gl.int64,
    pages_row: gl.int64,
    states: gl.int64,
    attending: gl.int32,
    tokens: gl.int32,
    count: gl.int32,
    key_heads: gl.int32,
    longest_query: gl.int32,
    splits: gl.int32,
    window: gl.int32,
    c: gl.float32,
    HALVES: gl.constexpr,
    OWN: gl.constexpr,
    PACK: gl.constexpr,
    HEADS: gl.constexpr,
    PAGE: gl.constexpr,
    PAGE_SIZE: gl.constexpr,
    STAGES: gl.constexpr,
    STEP: gl.constexpr,
    TURNS: gl.constexpr,
    SPLIT: gl.constexpr,
    ALONE: gl.constexpr,
    CAUSAL: gl.constexpr,
    WINDOWED: gl.constexpr,
    WAITS: gl.constexpr,
    maxnreg: gl.constexpr = None,
):
    """PACK query heads of one query against one split of its keys; programs behind the first `attending` fill rows of
    no sequence. `maxnreg` is the compiler's own option, which is named here to be a constant of the launch."""
    CONSTANTS: gl.constexpr = constants(
        HALVES, OWN, PACK, HEADS, PAGE, PAGE_SIZE, STAGES, STEP, TURNS, SPLIT, ALONE, CAUSAL, WINDOWED, WAITS
    )
    LAYOUT: gl.constexpr = k_described.layout
    dtype: gl.constexpr = k_described.dtype
    q_shared = gl.allocate_shared_memory(dtype, [HALVES, HEADS, WIDE], LAYOUT)
    weights_shared, shrinks_shared = (), ()
    NUMBERS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    for _ in gl.static_range(STEP):
        # Each on its own, so that nobody takes one for another.
        weights_shared += (gl.allocate_shared_memory(dtype, [2, HEADS, BLOCK], LAYOUT),)
        shrinks_shared += (gl.allocate_shared_memory(gl.float32, [2, HEADS], NUMBERS),)
    passed_on = (gl.allocate_shared_memory(gl.float32, [1, HEADS], NUMBERS).index(0), barriers_of(1, 1).index(0))
    k_shared = gl.allocate_shared_memory(dtype, [STAGES * HALVES, BLOCK, WIDE], LAYOUT)
    v_shared = gl.allocate_shared_memory(dtype, [STAGES * OWN, BLOCK, WIDE], LAYOUT)
    k_pages = k_shared._reinterpret(dtype, [STAGES * HALVES * (BLOCK // PAGE), PAGE, WIDE], LAYOUT)
    v_pages = v_shared._reinterpret(dtype, [STAGES * OWN * (BLOCK // PAGE), PAGE, WIDE], LAYOUT)
    k_ready, k_free = barriers_of(TURNS, STEP), barriers_of(TURNS, 1)
    v_ready, v_free = barriers_of(TURNS, STEP), barriers_of(TURNS, 1)
    handing, handed = (barriers_of(2, 1), barriers_of(2, 1)), (weights_shared, shrinks_shared)
    tables = (positions_ptr, q_start_ptr, q_length_ptr, k_start_ptr, k_length_ptr)
    place, view = place_of(tables, (attending, key_heads, longest_query, splits, window), CONSTANTS)
    if PAGE_SIZE > 0:
        pages_ptr += place[1] * pages_row
    column = place[2] * (HALVES * WIDE)
    own_column = column + place[5] * WIDE
    results = (out_ptr, lse_ptr, sums_ptr, totals_ptr, maxima_ptr)
    numbers = (states, key_heads * PACK, attending, tokens, count, q_start_ptr, q_length_ptr)
    q = (q_ptr, q_token, q_head, q_shared)
    gl.warp_specialize(
        [
            (
                weigh,
                (
                    q,
                    k_shared,
                    handed,
                    passed_on,
                    (k_ready, k_free, handing),
                    results,
                    numbers,
                    place,
                    view,
                    c,
                    CONSTANTS,
                ),
            ),
            (
                add_up,
                (v_shared, handed, passed_on, (v_ready, v_free, handing), results, numbers, place, view, CONSTANTS),
            ),
            (load, (k_described, k_pages, (k_ready, k_free), pages_ptr, column, place, view, HALVES, CONSTANTS)),
            (load, (v_described, v_pages, (v_ready, v_free), pages_ptr, own_column, place, view, OWN, CONSTANTS)),
        ],
        [4, 1, 1],
        [72, 40, 40],
    )
