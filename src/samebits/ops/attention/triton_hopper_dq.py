"""The kernel of attention's backward pass for Hopper that walks the keys for a tile of queries: dQ, by Gluon.

The order of `attention_dq` in triton_dq.py, so the same bits. One warp loads queries, gradients of the
output and blocks of keys and values; two groups of four warps have 64 queries each, and nobody waits for another
group. Rows that see no key get zeros here, so that nothing is filled before. Knows no launch."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from samebits.ops.attention.triton_blocks import seen
from samebits.ops.attention.triton_hopper_tiles import (
    BLOCK,
    ROWS,
    barriers_of,
    blocks_of,
    constants,
    pass_by,
    publish,
    published,
    tile_at,
)
from samebits.ops.attention.triton_hopper_walking import (
    GROUPS,
    any_not_finite,
    product,
    scaled,
    store_wide,
    wait_for_block,
)


@gluon.jit
def load(described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS: gl.constexpr):
    """The warp that loads: a tile's queries and gradients of the output, then block after block of keys and values."""
    q_start_ptr, _, k_start_ptr, _ = tables
    q_described, do_described, k_described, v_described = described
    q_shared, do_shared, k_shared, v_shared, numbers = shared
    q_ready, q_free, ready, free, number_ready, number_free = barriers
    lines, _, tiles, _, _ = sizes
    loaded, turns = 0, 0
    number = gl.program_id(0)
    while number < lines * tiles:
        following = gl.num_programs(0) + gl.atomic_add(counter_ptr, 1)
        publish(number, turns, numbers, number_ready, number_free)
        _, sequence, head, first, _, _, start, end = tile_at(number, tables, sizes, CONSTANTS)
        q_row = (gl.load(q_start_ptr + sequence) + first).to(gl.int32)
        k_row = gl.load(k_start_ptr + sequence).to(gl.int32)
        mbarrier.wait(q_free, turns & 1 ^ 1)
        mbarrier.expect(q_ready, 2 * GROUPS * q_described.block_type.nbytes)
        for group in gl.static_range(GROUPS):
            at = [q_row + group * ROWS, head * CONSTANTS.HEAD]
            tma.async_copy_global_to_shared(q_described, at, q_ready, q_shared.index(group))
            tma.async_copy_global_to_shared(do_described, at, q_ready, do_shared.index(group))
        column = head // CONSTANTS.GROUP * CONSTANTS.HEAD
        for block in range(start, end):
            stage = loaded % CONSTANTS.STAGES
            at = [k_row + block * BLOCK, column]
            mbarrier.wait(free.index(stage), loaded // CONSTANTS.STAGES & 1 ^ 1)
            mbarrier.expect(ready.index(stage), 2 * k_described.block_type.nbytes)
            tma.async_copy_global_to_shared(k_described, at, ready.index(stage), k_shared.index(stage))
            tma.async_copy_global_to_shared(v_described, at, ready.index(stage), v_shared.index(stage))
            loaded += 1
        number = following
        turns += 1
    publish(number, turns, numbers, number_ready, number_free)


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
def walk(start, end, loaded, q_shared, do_shared, shared, barriers, statistics, view, c, CONSTANTS: gl.constexpr):
    """One group's queries against blocks start..end-1, of which there are some: the sums of dQ.

    A block's scores and what its values gain are computed beside the product of the block before it."""
    HEAD: gl.constexpr = CONSTANTS.HEAD
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
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
    last = (loaded - 1) % CONSTANTS.STAGES
    sums = warpgroup_mma_wait(0, deps=[warpgroup_mma(rounded, k_shared.index(last), sums, is_async=True)])
    mbarrier.arrive(free.index(last))
    return sums


@gluon.jit
def compute(group, shared, barriers, tables, results, sizes, factors, CONSTANTS: gl.constexpr):
    """A group of warps that computes: its half of every tile of the program."""
    q_start_ptr, _, _, _ = tables
    q_shared, do_shared, k_shared, v_shared, numbers = shared
    q_ready, q_free, ready, free, number_ready, number_free = barriers
    statistics_ptr, pitch, dq_ptr, marks_ptr = results
    lines, heads, tiles, _, window = sizes
    c, scale = factors
    HEAD: gl.constexpr = CONSTANTS.HEAD
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    loaded, turns = 0, 0
    number = published(turns, numbers, number_ready, number_free)
    while number < lines * tiles:
        line, sequence, head, tile, q_length, k_length, start, end = tile_at(number, tables, sizes, CONSTANTS)
        first = tile + group * ROWS
        own_start, full_start, full_end, own_end = blocks_of(first, ROWS, q_length, k_length, window, CONSTANTS)
        rows = first + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
        places = statistics_ptr + (sequence * 2 * heads + head).to(gl.int64) * pitch + rows
        minus_lse = gl.load(places, mask=rows < q_length, other=0.0)
        delta = gl.load(places + heads * pitch, mask=rows < q_length, other=0.0)
        sums = gl.zeros((ROWS, HEAD), gl.float32, SUMS)
        mbarrier.wait(q_ready, turns & 1)
        loaded = pass_by(start, gl.where(own_end > own_start, own_start, end), loaded, ready, free, CONSTANTS)
        if own_end > own_start:
            sums = walk(
                own_start,
                own_end,
                loaded,
                q_shared.index(group),
                do_shared.index(group),
                (k_shared, v_shared),
                (ready, free),
                (minus_lse, delta),
                (k_length - q_length + rows, k_length, window, full_start, full_end),
                c,
                CONSTANTS,
            )
            mbarrier.arrive(q_free)
            loaded = pass_by(own_end, end, loaded + own_end - own_start, ready, free, CONSTANTS)
        else:
            mbarrier.arrive(q_free)
        inside = first + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS)) < q_length
        row = (gl.load(q_start_ptr + sequence).to(gl.int64) + first) * heads + head
        store_wide(dq_ptr, row, heads, first, q_length, scaled(sums, scale), HEAD)
        if any_not_finite(sums, inside):
            gl.store(marks_ptr + line * (tiles * GROUPS) + first // ROWS, 1)
        turns += 1
        number = published(turns, numbers, number_ready, number_free)


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
    numbers = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_ready, q_free = barriers_of(1, 1).index(0), barriers_of(1, GROUPS).index(0)
    ready, free = barriers_of(STAGES, 1), barriers_of(STAGES, GROUPS)
    number_ready, number_free = barriers_of(2, 1), barriers_of(2, GROUPS)
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
            (compute, (0, shared, barriers, tables, results, sizes, factors, CONSTANTS)),
            (compute, (1, shared, barriers, tables, results, sizes, factors, CONSTANTS)),
            (load, (described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS)),
        ],
        [4, 1],
        [240, 24],
    )
