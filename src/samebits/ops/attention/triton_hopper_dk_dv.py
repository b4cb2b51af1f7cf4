"""The kernel of attention's backward pass for Hopper that walks the queries for a tile of keys: dK and dV, by Gluon.

The order of `attention_dk_dv` in triton_dk_dv.py, so the same bits: heads of a group ascending, in each
head blocks of 64 queries ascending. One warp loads keys and values of a tile, then queries, gradients of the output and
the two numbers of each row; two groups of four warps have 64 keys each. Scores stand transposed, keys down. Keys that
no query sees get zeros here, so that nothing is filled before. Knows no launch."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from samebits.ops.attention.triton_blocks import query_range
from samebits.ops.attention.triton_hopper_tiles import BLOCK, ROWS, barriers_of, constants, publish, published
from samebits.ops.attention.triton_hopper_walking import (
    GROUPS,
    any_not_finite,
    product,
    scaled,
    store_wide,
    wait_for_block,
)


@gluon.jit
def queries_of(first, COUNT: gl.constexpr, q_length, k_length, window, CONSTANTS: gl.constexpr):
    """Blocks of queries that see COUNT keys from `first` on, as `query_range` has it; none where no key is left."""
    CAUSAL: gl.constexpr = CONSTANTS.CAUSAL
    WINDOWED: gl.constexpr = CONSTANTS.WINDOWED
    last = gl.minimum(first + COUNT, k_length) - 1
    start, full_start, full_end, end = query_range(
        first, last, k_length - q_length, q_length, window, BLOCK, CAUSAL, WINDOWED
    )
    return start, full_start, full_end, gl.where(first < k_length, end, start)


@gluon.jit
def keys_at(number, tables, sizes, CONSTANTS: gl.constexpr):
    """A tile of keys by its number: (line, sequence, key head, first key, lengths, range of blocks of queries).

    Tiles that most queries see under a causal mask come first among those of `section` lines, which fit the cache."""
    _, q_length_ptr, _, k_length_ptr = tables
    lines, heads, tiles, section, window = sizes
    key_heads = heads // CONSTANTS.GROUP
    before = number // (section * tiles) * section
    number = number % (section * tiles)
    wide = gl.minimum(section, lines - before)
    line = before + number % wide
    first = number // wide * (CONSTANTS.GROUPS * ROWS)
    sequence, key_head = line // key_heads, line % key_heads
    q_length, k_length = gl.load(q_length_ptr + sequence).to(gl.int32), gl.load(k_length_ptr + sequence).to(gl.int32)
    start, _, _, end = queries_of(first, CONSTANTS.GROUPS * ROWS, q_length, k_length, window, CONSTANTS)
    return line, sequence, key_head, first, q_length, k_length, start, end


@gluon.jit
def load(described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS: gl.constexpr):
    """The warp that loads: keys and values of a tile, then for every head of the group block after block of queries."""
    q_start_ptr, _, k_start_ptr, _ = tables
    q_described, do_described, k_described, v_described, rows_described = described
    q_shared, do_shared, k_shared, v_shared, lse_shared, delta_shared, numbers = shared
    k_ready, k_free, ready, free, number_ready, number_free = barriers
    lines, heads, tiles, _, _ = sizes
    loaded, turns = 0, 0
    number = gl.program_id(0)
    while number < lines * tiles:
        following = gl.num_programs(0) + gl.atomic_add(counter_ptr, 1)
        publish(number, turns, numbers, number_ready, number_free)
        _, sequence, key_head, first, _, _, start, end = keys_at(number, tables, sizes, CONSTANTS)
        q_row = gl.load(q_start_ptr + sequence).to(gl.int32)
        k_row = (gl.load(k_start_ptr + sequence) + first).to(gl.int32)
        mbarrier.wait(k_free, turns & 1 ^ 1)
        mbarrier.expect(k_ready, 2 * GROUPS * k_described.block_type.nbytes)
        for group in gl.static_range(GROUPS):
            at = [k_row + group * ROWS, key_head * CONSTANTS.HEAD]
            tma.async_copy_global_to_shared(k_described, at, k_ready, k_shared.index(group))
            tma.async_copy_global_to_shared(v_described, at, k_ready, v_shared.index(group))
        for member in range(CONSTANTS.GROUP):
            head = key_head * CONSTANTS.GROUP + member
            line = sequence * 2 * heads + head
            for block in range(start, end):
                stage = loaded % CONSTANTS.STAGES
                here = ready.index(stage)
                at = [q_row + block * BLOCK, head * CONSTANTS.HEAD]
                mbarrier.wait(free.index(stage), loaded // CONSTANTS.STAGES & 1 ^ 1)
                mbarrier.expect(here, 2 * q_described.block_type.nbytes + 2 * rows_described.block_type.nbytes)
                tma.async_copy_global_to_shared(q_described, at, here, q_shared.index(stage))
                tma.async_copy_global_to_shared(do_described, at, here, do_shared.index(stage))
                tma.async_copy_global_to_shared(rows_described, [line, block * BLOCK], here, lse_shared.index(stage))
                tma.async_copy_global_to_shared(
                    rows_described, [line + heads, block * BLOCK], here, delta_shared.index(stage)
                )
                loaded += 1
        number = following
        turns += 1
    publish(number, turns, numbers, number_ready, number_free)


@gluon.jit
def pass_by(count, loaded, ready, free, CONSTANTS: gl.constexpr):
    """So many blocks that the other group alone has keys for."""
    for _ in range(count):
        mbarrier.arrive(free.index(wait_for_block(loaded, ready, CONSTANTS)))
        loaded += 1
    return loaded


@gluon.jit
def seeing(keys, block, view, LAYOUT: gl.constexpr, CONSTANTS: gl.constexpr):
    """Whether a key (down) is seen by a query of a block (across)."""
    q_length, k_length, window, _, _ = view
    queries = block * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, LAYOUT))
    positions = k_length - q_length + queries
    inside = (keys < k_length)[:, None] & (queries < q_length)[None, :]
    if CONSTANTS.CAUSAL:
        inside = inside & (keys[:, None] <= positions[None, :])
    if CONSTANTS.WINDOWED:
        inside = inside & (keys[:, None] > positions[None, :] - window)
        if not CONSTANTS.CAUSAL:
            inside = inside & (keys[:, None] < positions[None, :] + window)
    return inside


@gluon.jit
def add_block(dk, dv, keys, block, loaded, own, shared, barriers, view, c, CONSTANTS: gl.constexpr):
    """A block of queries into the sums of one group's keys."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, dk.type.layout, 2)
    k_own, v_own = own
    q_shared, do_shared, lse_shared, delta_shared = shared
    ready, free = barriers
    _, _, _, full_start, full_end = view
    stage = wait_for_block(loaded, ready, CONSTANTS)
    scores = product(k_own, q_shared.index(stage), SCORES)
    gained = product(v_own, do_shared.index(stage), SCORES)
    minus_lse = lse_shared.index(stage).load(SCORES)
    scores = warpgroup_mma_wait(1, deps=[scores])
    weights = gl.exp2(gl.fma(scores, c, minus_lse))
    if (block < full_start) | (block >= full_end):
        weights = gl.where(seeing(keys, block, view, SCORES, CONSTANTS), weights, 0.0)
    rounded = gl.convert_layout(weights.to(q_shared.dtype), LEFT, assert_trivial=True)
    dv = warpgroup_mma(rounded, do_shared.index(stage), dv, is_async=True)
    delta = delta_shared.index(stage).load(SCORES)
    gained = warpgroup_mma_wait(1, deps=[gained])
    # A weight that is 0 for want of a mask makes a gradient of 0, or one that is not finite and is marked.
    gradients = weights * (gained - delta)
    rounded_gradients = gl.convert_layout(gradients.to(q_shared.dtype), LEFT, assert_trivial=True)
    dk = warpgroup_mma(rounded_gradients, q_shared.index(stage), dk, is_async=True)
    dv, dk = warpgroup_mma_wait(0, deps=[dv, dk])
    mbarrier.arrive(free.index(stage))
    return dk, dv


@gluon.jit
def compute(group, shared, barriers, tables, results, sizes, factors, CONSTANTS: gl.constexpr):
    """A group of warps that computes: its half of every tile of the program."""
    _, _, k_start_ptr, _ = tables
    q_shared, do_shared, k_shared, v_shared, lse_shared, delta_shared, numbers = shared
    k_ready, k_free, ready, free, number_ready, number_free = barriers
    dk_ptr, dv_ptr, marks_ptr = results
    lines, heads, tiles, _, window = sizes
    c, scale = factors
    HEAD: gl.constexpr = CONSTANTS.HEAD
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    key_heads = heads // CONSTANTS.GROUP
    loaded, turns = 0, 0
    number = published(turns, numbers, number_ready, number_free)
    while number < lines * tiles:
        line, sequence, key_head, tile, q_length, k_length, start, end = keys_at(number, tables, sizes, CONSTANTS)
        first = tile + group * ROWS
        own_start, full_start, full_end, own_end = queries_of(first, ROWS, q_length, k_length, window, CONSTANTS)
        # Where a group has no keys, its blocks are those of the other group.
        own_start, own_end = gl.where(own_end > own_start, own_start, end), gl.where(own_end > own_start, own_end, end)
        keys = first + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
        view = (q_length, k_length, window, full_start, full_end)
        dk, dv = gl.zeros((ROWS, HEAD), gl.float32, SUMS), gl.zeros((ROWS, HEAD), gl.float32, SUMS)
        own = (k_shared.index(group), v_shared.index(group))
        mbarrier.wait(k_ready, turns & 1)
        for _member in range(CONSTANTS.GROUP):
            loaded = pass_by(own_start - start, loaded, ready, free, CONSTANTS)
            for block in range(own_start, own_end):
                dk, dv = add_block(
                    dk,
                    dv,
                    keys,
                    block,
                    loaded,
                    own,
                    (q_shared, do_shared, lse_shared, delta_shared),
                    (ready, free),
                    view,
                    c,
                    CONSTANTS,
                )
                loaded += 1
            loaded = pass_by(end - own_end, loaded, ready, free, CONSTANTS)
        mbarrier.arrive(k_free)
        inside = first + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS)) < k_length
        row = (gl.load(k_start_ptr + sequence).to(gl.int64) + first) * key_heads + key_head
        store_wide(dk_ptr, row, key_heads, first, k_length, scaled(dk, scale), HEAD)
        store_wide(dv_ptr, row, key_heads, first, k_length, dv + 0.0, HEAD)
        if any_not_finite(dk, inside) | any_not_finite(dv, inside):
            gl.store(marks_ptr + line * (tiles * GROUPS) + first // ROWS, 1)
        turns += 1
        number = published(turns, numbers, number_ready, number_free)


@gluon.jit(
    do_not_specialize=["lines", "heads", "tiles", "section", "window", "c", "scale"],
    do_not_specialize_on_alignment=[
        "dk_ptr",
        "dv_ptr",
        "marks_ptr",
        "counter_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
    ],
)
def attention_dk_dv_hopper(
    q_described,
    do_described,
    k_described,
    v_described,
    rows_described,
    dk_ptr,
    dv_ptr,
    marks_ptr,
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
    scale: gl.float32,
    HEAD: gl.constexpr,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    WINDOWED: gl.constexpr,
    STAGES: gl.constexpr,
):
    """dV = sum of P dO, dK = scale * sum of dS Q, for tiles of 128 keys of a key head, until there are no more."""
    CONSTANTS: gl.constexpr = constants(HEAD, GROUP, CAUSAL, WINDOWED, False, STAGES, 0, GROUPS)
    LAYOUT: gl.constexpr = q_described.layout
    LINE: gl.constexpr = rows_described.layout
    dtype: gl.constexpr = q_described.dtype
    k_shared = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, HEAD], LAYOUT)
    v_shared = gl.allocate_shared_memory(dtype, [GROUPS, ROWS, HEAD], LAYOUT)
    q_shared = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, HEAD], LAYOUT)
    do_shared = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, HEAD], LAYOUT)
    lse_shared = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK], LINE)
    delta_shared = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK], LINE)
    numbers = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    k_ready, k_free = barriers_of(1, 1).index(0), barriers_of(1, GROUPS).index(0)
    ready, free = barriers_of(STAGES, 1), barriers_of(STAGES, GROUPS)
    number_ready, number_free = barriers_of(2, 1), barriers_of(2, GROUPS)
    shared = (q_shared, do_shared, k_shared, v_shared, lse_shared, delta_shared, numbers)
    barriers = (k_ready, k_free, ready, free, number_ready, number_free)
    described = (q_described, do_described, k_described, v_described, rows_described)
    tables, results = (q_start_ptr, q_length_ptr, k_start_ptr, k_length_ptr), (dk_ptr, dv_ptr, marks_ptr)
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
