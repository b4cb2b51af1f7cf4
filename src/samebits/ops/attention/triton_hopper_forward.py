"""The kernel of attention's forward pass for Hopper, by Gluon: a warp that loads, and groups of warps that compute.

The same blocks, splits and order as `attention_forward` in triton_forward.py, so the same bits; what differs is who
waits for whom. One warp copies queries and blocks of keys and values into shared memory by the tensor memory
accelerator; each group has 64 queries of a tile. A program goes from tile to tile. Rows that see no key are written
here, too, so that nothing is filled before. Knows no launch."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from samebits.ops.attention.triton_hopper_softmax import attend
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
from samebits.ops.attention.triton_merge import inverse_of, logarithm_of

GROUPS = gl.constexpr(3)
"""Groups of warps that compute: what one of them waits for, two others fill."""


@gluon.jit
def load(described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS: gl.constexpr):
    """The warp that loads: which tile is next, its keys and values, block after block, and each group's queries.

    The first block comes before the queries, whose memory a group gives back only when it has its last scores. The
    group with the first part has fewest blocks to do, so its queries come first, and then the second block: no third,
    for two stages may be all there are, and groups that wait for their queries give none back."""
    q_described, k_described, v_described = described
    q_shared, k_shared, v_shared, numbers = shared
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
            at = [q_start + first + part * ROWS, head * CONSTANTS.HEAD]
            mbarrier.wait(q_free.index(group), turns & 1 ^ 1)
            mbarrier.expect(q_ready.index(group), q_described.block_type.nbytes)
            tma.async_copy_global_to_shared(q_described, at, q_ready.index(group), q_shared.index(group))
            if part == 0:
                second = gl.minimum(start + 2, end)
                loaded = load_blocks(start + 1, second, k_row, column, loaded, memory, waiting, CONSTANTS)
        # Here, so that what it waits for comes while blocks are waited for.
        tile = tile_at(following, tables, sizes, CONSTANTS)
        loaded = load_blocks(start + 2, end, k_row, column, loaded, memory, waiting, CONSTANTS)
        number = following
        turns += 1
    publish_end(lines, turns, numbers, number_ready, number_free, CONSTANTS)


@gluon.jit
def store(sums, total, largest, first, row, heads, q_length, results, c, CONSTANTS: gl.constexpr):
    """Rounds and stores a group's rows; whether any of them is not finite."""
    out_ptr, lse_ptr = results
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, sums.type.layout))
    inside = first + rows < q_length
    gl.store(lse_ptr + row + rows * heads, logarithm_of(total, largest, c), mask=inside)
    # As `finished` has it where sums are finite; where they are not, they are done again.
    store_wide(out_ptr, row, heads, first, q_length, scaled(sums, inverse_of(total)[:, None]), CONSTANTS.HEAD)
    return any_not_finite(sums, inside)


@gluon.jit
def store_nothing(first, row, heads, q_length, results, HEAD: gl.constexpr):
    """What 64 queries without a key have: 0, and +inf in the logarithms."""
    out_ptr, lse_ptr = results
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, SUMS))
    nothing = gl.full((ROWS,), float("inf"), gl.float32, gl.SliceLayout(1, SUMS))
    gl.store(lse_ptr + row + rows * heads, nothing, mask=first + rows < q_length)
    store_wide(out_ptr, row, heads, first, q_length, gl.zeros((ROWS, HEAD), gl.float32, SUMS), HEAD)


@gluon.jit
def compute(group, shared, barriers, results, sizes, c, CONSTANTS: gl.constexpr):
    """A group of warps that computes: a part of every tile of the program."""
    q_shared, k_shared, v_shared, numbers = shared
    q_ready, q_free, ready, free, number_ready, number_free = barriers
    out_ptr, lse_ptr, redo_ptr = results
    lines, heads, tiles, _, window = sizes
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    loaded, turns = 0, 0
    line = published(turns, numbers, number_ready, CONSTANTS)
    while line < lines:
        part = part_of(group, turns, CONSTANTS)
        start, end = walked_by_all(turns, numbers, CONSTANTS)
        own_start, full_start, full_end, own_end = walked_by(part, turns, numbers, CONSTANTS)
        mbarrier.wait(q_ready.index(group), turns & 1)
        loaded = pass_by(start, gl.where(own_end > own_start, own_start, end), loaded, ready, free, CONSTANTS)
        if own_end > own_start:
            tile, _, q_length, k_length = lengths_of(turns, numbers, CONSTANTS)
            rows = tile + part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            view = (k_length - q_length + rows, k_length, window, full_start, full_end)
            sums, total, largest = attend(
                own_start,
                own_end,
                loaded,
                (q_shared.index(group), q_free.index(group)),
                (k_shared, v_shared),
                (ready, free),
                view,
                c,
                CONSTANTS,
            )
            loaded = pass_by(own_end, end, loaded + own_end - own_start, ready, free, CONSTANTS)
            tile, q_start, q_length, _ = lengths_of(turns, numbers, CONSTANTS)
            first = tile + part * ROWS
            row = (q_start.to(gl.int64) + first) * heads + line % heads
            if store(sums, total, largest, first, row, heads, q_length, (out_ptr, lse_ptr), c, CONSTANTS):
                gl.store(redo_ptr + line * (tiles * GROUPS) + first // ROWS, 1)
        else:
            mbarrier.arrive(q_free.index(group))
            tile, q_start, q_length, _ = lengths_of(turns, numbers, CONSTANTS)
            first = tile + part * ROWS
            if first >= 0:
                row = (q_start.to(gl.int64) + first) * heads + line % heads
                store_nothing(first, row, heads, q_length, (out_ptr, lse_ptr), CONSTANTS.HEAD)
        mbarrier.arrive(number_free.index(turns % SLOTS))
        turns += 1
        line = published(turns, numbers, number_ready, CONSTANTS)


@gluon.jit(
    do_not_specialize=["lines", "heads", "tiles", "section", "window", "c"],
    do_not_specialize_on_alignment=[
        "out_ptr",
        "lse_ptr",
        "redo_ptr",
        "counter_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
    ],
)
def attention_hopper(
    q_described,
    k_described,
    v_described,
    out_ptr,
    lse_ptr,
    redo_ptr,
    counter_ptr,
    q_start_ptr,
    q_length_ptr,
    k_start_ptr,
    k_length_ptr,
    lines: gl.int32,
    heads: gl.int32,
    tiles: gl.int32,
    section: gl.int32,
    window: gl.int32,
    c: gl.float32,
    HEAD: gl.constexpr,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    WINDOWED: gl.constexpr,
    SEVERAL: gl.constexpr,
    STAGES: gl.constexpr,
    SPLIT: gl.constexpr,
):
    """Tiles of 192 queries of one line (a head of a sequence), one after another, until there are no more."""
    CONSTANTS: gl.constexpr = constants(HEAD, GROUP, CAUSAL, WINDOWED, SEVERAL, STAGES, SPLIT, GROUPS)
    LAYOUT: gl.constexpr = q_described.layout
    dtype: gl.constexpr = q_described.dtype
    q_shared = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, HEAD], LAYOUT)
    k_shared = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, HEAD], LAYOUT)
    v_shared = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, HEAD], LAYOUT)
    numbers = numbers_shared(CONSTANTS)
    q_ready, q_free = barriers_of(GROUPS, 1), barriers_of(GROUPS, 1)
    ready, free = barriers_of(STAGES, 1), barriers_of(STAGES, GROUPS)
    number_ready, number_free = barriers_of(SLOTS, 1), barriers_of(SLOTS, GROUPS)
    shared = (q_shared, k_shared, v_shared, numbers)
    barriers = (q_ready, q_free, ready, free, number_ready, number_free)
    described = (q_described, k_described, v_described)
    tables, results = (q_start_ptr, q_length_ptr, k_start_ptr, k_length_ptr), (out_ptr, lse_ptr, redo_ptr)
    sizes = (lines, heads, tiles, section, window)
    gl.warp_specialize(
        [
            (compute, (0, shared, barriers, results, sizes, c, CONSTANTS)),
            (compute, (1, shared, barriers, results, sizes, c, CONSTANTS)),
            (compute, (2, shared, barriers, results, sizes, c, CONSTANTS)),
            (load, (described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS)),
        ],
        [4, 4, 1],
        [160, 160, 24],
    )
