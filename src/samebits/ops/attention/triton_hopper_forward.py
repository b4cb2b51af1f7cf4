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
from samebits.ops.attention.triton_merge import finished

GROUPS = gl.constexpr(3)
"""Groups of warps that compute: what one of them waits for, two others fill."""


@gluon.jit
def load(described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS: gl.constexpr):
    """The warp that loads: which tile is next, its queries, then its keys and values, block after block."""
    q_start_ptr, _, k_start_ptr, _ = tables
    q_described, k_described, v_described = described
    q_shared, k_shared, v_shared, numbers = shared
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
        mbarrier.expect(q_ready, GROUPS * q_described.block_type.nbytes)
        for group in gl.static_range(GROUPS):
            at = [q_row + group * ROWS, head * CONSTANTS.HEAD]
            tma.async_copy_global_to_shared(q_described, at, q_ready, q_shared.index(group))
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
def store(sums, total, largest, first, row, heads, q_length, results, c, CONSTANTS: gl.constexpr):
    """Rounds and stores a group's rows; whether any of them is not finite."""
    out_ptr, lse_ptr = results
    SUMS: gl.constexpr = sums.type.layout
    # Eight elements a thread side by side, where the matrix units leave two.
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // CONSTANTS.HEAD, CONSTANTS.HEAD // 8], [4, 1], [1, 0])
    inside = first + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS)) < q_length
    wrong = ~(gl.abs(gl.where(inside[:, None], sums, 0.0)) < float("inf"))
    result, lse = finished(sums, total, largest, c)
    gl.store(lse_ptr + row + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS)) * heads, lse, mask=inside)
    rounded = gl.convert_layout(result.to(out_ptr.dtype.element_ty), WIDE)
    rows, columns = gl.arange(0, ROWS, gl.SliceLayout(1, WIDE)), gl.arange(0, CONSTANTS.HEAD, gl.SliceLayout(0, WIDE))
    pointers = out_ptr + row * CONSTANTS.HEAD + (rows * (heads * CONSTANTS.HEAD))[:, None] + columns[None, :]
    gl.store(pointers, rounded, mask=(first + rows < q_length)[:, None])
    return gl.max(gl.max(wrong.to(gl.int32), 1), 0)


@gluon.jit
def store_nothing(first, row, heads, q_length, results, HEAD: gl.constexpr):
    """What 64 queries without a key have: 0, and +inf in the logarithms."""
    out_ptr, lse_ptr = results
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD, HEAD // 8], [4, 1], [1, 0])
    rows, columns = gl.arange(0, ROWS, gl.SliceLayout(1, WIDE)), gl.arange(0, HEAD, gl.SliceLayout(0, WIDE))
    inside = first + rows < q_length
    nothing = gl.full((ROWS,), float("inf"), gl.float32, gl.SliceLayout(1, WIDE))
    gl.store(lse_ptr + row + rows * heads, nothing, mask=inside)
    pointers = out_ptr + row * HEAD + (rows * (heads * HEAD))[:, None] + columns[None, :]
    gl.store(pointers, gl.zeros((ROWS, HEAD), out_ptr.dtype.element_ty, WIDE), mask=inside[:, None])


@gluon.jit
def compute(group, shared, barriers, tables, results, sizes, c, CONSTANTS: gl.constexpr):
    """A group of warps that computes: its third of every tile of the program."""
    q_start_ptr, _, _, _ = tables
    q_shared, k_shared, v_shared, numbers = shared
    q_ready, q_free, ready, free, number_ready, number_free = barriers
    out_ptr, lse_ptr, redo_ptr = results
    lines, heads, tiles, _, window = sizes
    HEAD: gl.constexpr = CONSTANTS.HEAD
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    loaded, turns = 0, 0
    number = published(turns, numbers, number_ready, number_free)
    while number < lines * tiles:
        line, sequence, head, tile, q_length, k_length, start, end = tile_at(number, tables, sizes, CONSTANTS)
        first = tile + group * ROWS
        own_start, full_start, full_end, own_end = blocks_of(first, ROWS, q_length, k_length, window, CONSTANTS)
        row = (gl.load(q_start_ptr + sequence).to(gl.int64) + first) * heads + head
        mbarrier.wait(q_ready, turns & 1)
        loaded = pass_by(start, gl.where(own_end > own_start, own_start, end), loaded, ready, free, CONSTANTS)
        if own_end > own_start:
            positions = k_length - q_length + first + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            view = (positions, k_length, window, full_start, full_end)
            sums, total, largest = attend(
                own_start,
                own_end,
                loaded,
                q_shared.index(group),
                (k_shared, v_shared),
                (ready, free),
                view,
                c,
                CONSTANTS,
            )
            mbarrier.arrive(q_free)
            loaded = pass_by(own_end, end, loaded + own_end - own_start, ready, free, CONSTANTS)
            wrong = store(sums, total, largest, first, row, heads, q_length, (out_ptr, lse_ptr), c, CONSTANTS)
            if wrong > 0:
                gl.store(redo_ptr + line * (tiles * GROUPS) + first // ROWS, 1)
        else:
            mbarrier.arrive(q_free)
            store_nothing(first, row, heads, q_length, (out_ptr, lse_ptr), HEAD)
        turns += 1
        number = published(turns, numbers, number_ready, number_free)


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
    numbers = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_ready, q_free = barriers_of(1, 1).index(0), barriers_of(1, GROUPS).index(0)
    ready, free = barriers_of(STAGES, 1), barriers_of(STAGES, GROUPS)
    number_ready, number_free = barriers_of(2, 1), barriers_of(2, GROUPS)
    shared = (q_shared, k_shared, v_shared, numbers)
    barriers = (q_ready, q_free, ready, free, number_ready, number_free)
    described = (q_described, k_described, v_described)
    tables, results = (q_start_ptr, q_length_ptr, k_start_ptr, k_length_ptr), (out_ptr, lse_ptr, redo_ptr)
    sizes = (lines, heads, tiles, section, window)
    gl.warp_specialize(
        [
            (compute, (0, shared, barriers, tables, results, sizes, c, CONSTANTS)),
            (compute, (1, shared, barriers, tables, results, sizes, c, CONSTANTS)),
            (compute, (2, shared, barriers, tables, results, sizes, c, CONSTANTS)),
            (load, (described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS)),
        ],
        [4, 4, 1],
        [160, 160, 24],
    )
