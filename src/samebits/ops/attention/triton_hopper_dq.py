"""The kernel of attention's backward pass for Hopper that walks the keys for a tile of queries: dQ, by Gluon.

The order of `attention_dq` in triton_dq.py, so the same bits. One warp loads queries, gradients of the
output and blocks of keys and values; two groups of four warps have 64 queries each, and nobody waits for another
group. Rows that see no key get zeros here, so that nothing is filled before. Knows no launch."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from samebits.ops.attention.triton_blocks import seen
from samebits.ops.attention.triton_hopper_storing import any_not_finite, scaled, store_wide
from samebits.ops.attention.triton_hopper_tiles import (
    BLOCK,
    ROWS,
    SLOTS,
    barriers_of,
    constants,
    group_of,
    lengths_of,
    load_blocks,
    next_number,
    numbers_shared,
    part_of,
    pass_by,
    publish_end,
    publish_queries,
    published,
    tile_at,
    walked_by,
    walked_by_all,
)
from samebits.ops.attention.triton_hopper_walking import GROUPS, product, wait_for_block


@gluon.jit
def load(described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS: gl.constexpr):
    """The warp that loads: a tile's keys and values, block after block, and each group's queries and gradients of the
    output behind the first block, for a group gives their memory back only when it has its last scores. The group with
    the first part has fewer blocks to do, and is first."""
    q_described, do_described, k_described, v_described = described
    q_shared, do_shared, k_shared, v_shared, numbers = shared
    q_ready, q_free, ready, free, number_ready, number_free = barriers
    lines, heads, tiles, _, window = sizes
    loaded, turns = 0, 0
    number = gl.program_id(0)
    tile = tile_at(number, tables, sizes, CONSTANTS)
    while number < lines * tiles:
        following = next_number(counter_ptr)
        start, end = publish_queries(tile, turns, window, numbers, number_ready, number_free, CONSTANTS)
        line, first, q_start, _, _, k_row = tile
        head = line % heads
        memory, waiting = (k_described, v_described, k_shared, v_shared), (ready, free)
        column = head // CONSTANTS.GROUP * CONSTANTS.HEAD
        loaded = load_blocks(start, gl.minimum(start + 1, end), k_row, column, loaded, memory, waiting, CONSTANTS)
        for part in gl.static_range(GROUPS):
            group = group_of(part, turns, CONSTANTS)
            at, here = [q_start + first + part * ROWS, head * CONSTANTS.HEAD], q_ready.index(group)
            mbarrier.wait(q_free.index(group), turns & 1 ^ 1)
            mbarrier.expect(here, 2 * q_described.block_type.nbytes)
            tma.async_copy_global_to_shared(q_described, at, here, q_shared.index(group))
            tma.async_copy_global_to_shared(do_described, at, here, do_shared.index(group))
        # Here, so that what it waits for comes while blocks are waited for.
        tile = tile_at(following, tables, sizes, CONSTANTS)
        loaded = load_blocks(start + 1, end, k_row, column, loaded, memory, waiting, CONSTANTS)
        number = following
        turns += 1
    publish_end(lines, turns, numbers, number_ready, number_free, CONSTANTS)


@gluon.jit
def gradients_of(scores, gained, block, statistics, view, c, CONSTANTS: gl.constexpr):
    """The gradients of one block's scores: weights times what the values gained less the row's mean; 0 where a query
    does not see a key."""
    minus_lse, delta = statistics
    positions, k_length, window, full_start, full_end = view
    CAUSAL: gl.constexpr = CONSTANTS.CAUSAL
    WINDOWED: gl.constexpr = CONSTANTS.WINDOWED
    weights = gl.exp2(gl.fma(scores, c, minus_lse[:, None]))
    gradients = weights * (gained - delta[:, None])
    if (block < full_start) | (block >= full_end):
        keys = block * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, scores.type.layout))
        gradients = gl.where(seen(positions, keys, k_length, window, CAUSAL, WINDOWED), gradients, 0.0)
    return gradients


@gluon.jit
def walk(start, end, loaded, queries, shared, barriers, statistics, view, c, CONSTANTS: gl.constexpr):
    """One group's queries against blocks start..end-1, of which there are some: the sums of dQ. The memory of the
    queries is given back as soon as the last scores are there.

    A block's scores and what its values gain are computed beside the product of the block before it."""
    HEAD: gl.constexpr = CONSTANTS.HEAD
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    q_shared, do_shared, q_free = queries
    k_shared, v_shared = shared
    ready, free = barriers
    sums = gl.zeros((ROWS, HEAD), gl.float32, SUMS)
    stage = wait_for_block(loaded, ready, CONSTANTS)
    scores = product(q_shared, k_shared.index(stage), SCORES)
    gained = product(do_shared, v_shared.index(stage), SCORES)
    scores, gained = warpgroup_mma_wait(0, deps=[scores, gained])
    gradients = gradients_of(scores, gained, start, statistics, view, c, CONSTANTS)
    rounded = gl.convert_layout(gradients.to(k_shared.dtype), LEFT, assert_trivial=True)
    loaded += 1
    for block in range(start + 1, end):
        before = (loaded - 1) % CONSTANTS.STAGES
        stage = wait_for_block(loaded, ready, CONSTANTS)
        scores = product(q_shared, k_shared.index(stage), SCORES)
        gained = product(do_shared, v_shared.index(stage), SCORES)
        sums = warpgroup_mma(rounded, k_shared.index(before), sums, is_async=True)
        scores, gained = warpgroup_mma_wait(1, deps=[scores, gained])
        gradients = gradients_of(scores, gained, block, statistics, view, c, CONSTANTS)
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(free.index(before))
        rounded = gl.convert_layout(gradients.to(k_shared.dtype), LEFT, assert_trivial=True)
        loaded += 1
    mbarrier.arrive(q_free)
    last = (loaded - 1) % CONSTANTS.STAGES
    sums = warpgroup_mma_wait(0, deps=[warpgroup_mma(rounded, k_shared.index(last), sums, is_async=True)])
    mbarrier.arrive(free.index(last))
    return sums


@gluon.jit
def compute(group, shared, barriers, results, sizes, factors, CONSTANTS: gl.constexpr):
    """A group of warps that computes: its half of every tile of the program."""
    q_shared, do_shared, k_shared, v_shared, numbers = shared
    q_ready, q_free, ready, free, number_ready, number_free = barriers
    statistics_ptr, pitch, dq_ptr, marks_ptr = results
    lines, heads, tiles, _, window = sizes
    c, scale = factors
    HEAD: gl.constexpr = CONSTANTS.HEAD
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    loaded, turns = 0, 0
    line = published(turns, numbers, number_ready, CONSTANTS)
    while line < lines:
        part = part_of(group, turns, CONSTANTS)
        start, end = walked_by_all(turns, numbers, CONSTANTS)
        own_start, full_start, full_end, own_end = walked_by(part, turns, numbers, CONSTANTS)
        tile, _, q_length, k_length = lengths_of(turns, numbers, CONSTANTS)
        rows = tile + part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
        places = statistics_ptr + (line // heads * 2 * heads + line % heads).to(gl.int64) * pitch + rows
        known = (rows >= 0) & (rows < q_length)
        minus_lse = gl.load(places, mask=known, other=0.0)
        delta = gl.load(places + heads * pitch, mask=known, other=0.0)
        sums = gl.zeros((ROWS, HEAD), gl.float32, SUMS)
        mbarrier.wait(q_ready.index(group), turns & 1)
        loaded = pass_by(start, gl.where(own_end > own_start, own_start, end), loaded, ready, free, CONSTANTS)
        if own_end > own_start:
            sums = walk(
                own_start,
                own_end,
                loaded,
                (q_shared.index(group), do_shared.index(group), q_free.index(group)),
                (k_shared, v_shared),
                (ready, free),
                (minus_lse, delta),
                (k_length - q_length + rows, k_length, window, full_start, full_end),
                c,
                CONSTANTS,
            )
            loaded = pass_by(own_end, end, loaded + own_end - own_start, ready, free, CONSTANTS)
        else:
            mbarrier.arrive(q_free.index(group))
        tile, q_start, q_length, _ = lengths_of(turns, numbers, CONSTANTS)
        first = tile + part * ROWS
        if first >= 0:
            inside = first + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS)) < q_length
            row = (q_start.to(gl.int64) + first) * heads + line % heads
            store_wide(dq_ptr, row, heads, first, q_length, scaled(sums, scale), HEAD)
            if any_not_finite(sums, inside):
                gl.store(marks_ptr + line * (tiles * GROUPS) + first // ROWS, 1)
        mbarrier.arrive(number_free.index(turns % SLOTS))
        turns += 1
        line = published(turns, numbers, number_ready, CONSTANTS)


@gluon.jit(
    do_not_specialize=["pitch", "lines", "heads", "tiles", "section", "window", "c", "scale"],
    do_not_specialize_on_alignment=[
        "statistics_ptr",
        "dq_ptr",
        "marks_ptr",
        "counter_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
    ],
)
def attention_dq_hopper(
    q_described,
    do_described,
    k_described,
    v_described,
    statistics_ptr,
    dq_ptr,
    marks_ptr,
    counter_ptr,
    q_start_ptr,
    q_length_ptr,
    k_start_ptr,
    k_length_ptr,
    pitch: gl.int64,
    lines: gl.int32,
    heads: gl.int32,
    tiles: gl.int32,
    section: gl.int32,
    window: gl.int32,
    c: gl.float32,
    scale: gl.float32,
    HEAD: gl.constexpr,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    WINDOWED: gl.constexpr,
    STAGES: gl.constexpr,
):
    """dQ = scale * sum over keys ascending of dS K, for tiles of 128 queries of a head, until there are no more."""
    CONSTANTS: gl.constexpr = constants(HEAD, GROUP, CAUSAL, WINDOWED, False, STAGES, 0, GROUPS)
    LAYOUT: gl.constexpr = q_described.layout
    dtype: gl.constexpr = q_described.dtype
    q_shared = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, HEAD], LAYOUT)
    do_shared = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, HEAD], LAYOUT)
    k_shared = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, HEAD], LAYOUT)
    v_shared = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, HEAD], LAYOUT)
    numbers = numbers_shared(CONSTANTS)
    q_ready, q_free = barriers_of(GROUPS, 1), barriers_of(GROUPS, 1)
    ready, free = barriers_of(STAGES, 1), barriers_of(STAGES, GROUPS)
    number_ready, number_free = barriers_of(SLOTS, 1), barriers_of(SLOTS, GROUPS)
    shared = (q_shared, do_shared, k_shared, v_shared, numbers)
    barriers = (q_ready, q_free, ready, free, number_ready, number_free)
    described = (q_described, do_described, k_described, v_described)
    tables, results = (
        (q_start_ptr, q_length_ptr, k_start_ptr, k_length_ptr),
        (statistics_ptr, pitch, dq_ptr, marks_ptr),
    )
    sizes, factors = (lines, heads, tiles, section, window), (c, scale)
    gl.warp_specialize(
        [
            (compute, (0, shared, barriers, results, sizes, factors, CONSTANTS)),
            (compute, (1, shared, barriers, results, sizes, factors, CONSTANTS)),
            (load, (described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS)),
        ],
        [4, 1],
        [240, 24],
    )
