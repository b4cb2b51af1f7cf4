"""The forward kernel for Hopper of ops/attention/triton_hopper_forward.py, which also writes rows that see no key.

Its loads, products and softmax are that kernel's; what differs is that nothing need be filled before.
Knows no launch."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from samebits.ops.attention.triton_hopper_forward import barriers_of, load, pass_by, store
from samebits.ops.attention.triton_hopper_softmax import attend
from samebits.ops.attention.triton_hopper_tiles import BLOCK, GROUPS, ROWS, blocks_of, constants, published, tile_at


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
    """A group of warps that computes: its half of every tile of the program."""
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
def attention_hopper_whole(
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
    """Tiles of 128 queries of one line (a head of a sequence), one after another, until there are no more."""
    CONSTANTS: gl.constexpr = constants(HEAD, GROUP, CAUSAL, WINDOWED, SEVERAL, STAGES, SPLIT)
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
            (load, (described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS)),
        ],
        [4, 1],
        [240, 24],
    )
