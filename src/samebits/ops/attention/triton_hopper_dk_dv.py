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
from samebits.ops.attention.triton_hopper_storing import any_not_finite, scaled, store_wide
from samebits.ops.attention.triton_hopper_tiles import (
    BLOCK,
    OF_PART,
    ROWS,
    SLOTS,
    TOLD,
    barriers_of,
    constants,
    group_of,
    lengths_of,
    next_number,
    numbers_shared,
    part_of,
    publish_end,
    published,
    tell,
    walked_by,
    walked_by_all,
)
from samebits.ops.attention.triton_hopper_walking import GROUPS, product, wait_for_block


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
    """A tile of keys by its number, the last one for numbers behind it: (line, first key, first token of the sequence's
    keys, lengths, the first token of its queries).

    Tiles that most queries see under a causal mask come first among those of `section` lines, which fit the cache."""
    q_start_ptr, q_length_ptr, k_start_ptr, k_length_ptr = tables
    lines, heads, tiles, section, _ = sizes
    number = gl.minimum(number, lines * tiles - 1)
    before = number // (section * tiles) * section
    number = number % (section * tiles)
    wide = gl.minimum(section, lines - before)
    line = before + number % wide
    first = number // wide * (CONSTANTS.GROUPS * ROWS)
    sequence = line // (heads // CONSTANTS.GROUP)
    q_length, k_length = gl.load(q_length_ptr + sequence).to(gl.int32), gl.load(k_length_ptr + sequence).to(gl.int32)
    q_start, k_start = gl.load(q_start_ptr + sequence).to(gl.int32), gl.load(k_start_ptr + sequence).to(gl.int32)
    return line, first, k_start, q_length, k_length, q_start


@gluon.jit
def publish_keys(tile, turn, window, numbers, number_ready, number_free, CONSTANTS: gl.constexpr):
    """Tells the groups a tile of keys and the blocks of queries that each part of it walks, once for every head: the
    range of all is given back."""
    mbarrier.wait(number_free.index(turn % SLOTS), turn // SLOTS & 1 ^ 1)
    _, first, _, q_length, k_length, _ = tile
    start, _, _, end = queries_of(first, CONSTANTS.GROUPS * ROWS, q_length, k_length, window, CONSTANTS)
    tell(tile, turn, 0, numbers, 5, CONSTANTS)
    tell((start, end), turn, 5, numbers, 2, CONSTANTS)
    for part in range(CONSTANTS.GROUPS):
        walked = queries_of(first + part * ROWS, ROWS, q_length, k_length, window, CONSTANTS)
        tell(walked, turn, TOLD + OF_PART * part, numbers, OF_PART, CONSTANTS)
    mbarrier.arrive(number_ready.index(turn % SLOTS))
    return start, end


@gluon.jit
def load_queries(first, last, place, loaded, memory, barriers, CONSTANTS: gl.constexpr):
    """Begins copies of what a head's blocks first..last-1 of queries have, each once its stage is free."""
    q_row, head, line, heads = place
    q_described, do_described, rows_described, q_shared, do_shared, lse_shared, delta_shared = memory
    ready, free = barriers
    for block in range(first, last):
        stage = loaded % CONSTANTS.STAGES
        here = ready.index(stage)
        at = [q_row + block * BLOCK, head * CONSTANTS.HEAD]
        mbarrier.wait(free.index(stage), loaded // CONSTANTS.STAGES & 1 ^ 1)
        mbarrier.expect(here, 2 * q_described.block_type.nbytes + 2 * rows_described.block_type.nbytes)
        tma.async_copy_global_to_shared(q_described, at, here, q_shared.index(stage))
        tma.async_copy_global_to_shared(do_described, at, here, do_shared.index(stage))
        tma.async_copy_global_to_shared(rows_described, [line, block * BLOCK], here, lse_shared.index(stage))
        tma.async_copy_global_to_shared(rows_described, [line + heads, block * BLOCK], here, delta_shared.index(stage))
        loaded += 1
    return loaded


@gluon.jit
def load(described, shared, barriers, tables, sizes, counter_ptr, CONSTANTS: gl.constexpr):
    """The warp that loads: for every head of a tile's group block after block of queries, and each group of warps' keys
    and values behind the first block, for their memory is given back only when its last block is done."""
    q_described, do_described, k_described, v_described, rows_described = described
    q_shared, do_shared, k_shared, v_shared, lse_shared, delta_shared, numbers = shared
    k_ready, k_free, ready, free, number_ready, number_free = barriers
    lines, heads, tiles, _, window = sizes
    memory, waiting = (
        (q_described, do_described, rows_described, q_shared, do_shared, lse_shared, delta_shared),
        (ready, free),
    )
    loaded, turns = 0, 0
    number = gl.program_id(0)
    tile = keys_at(number, tables, sizes, CONSTANTS)
    while number < lines * tiles:
        following = next_number(counter_ptr)
        start, end = publish_keys(tile, turns, window, numbers, number_ready, number_free, CONSTANTS)
        line, first, k_start, _, _, q_row = tile
        sequence, key_head = line // (heads // CONSTANTS.GROUP), line % (heads // CONSTANTS.GROUP)
        head = key_head * CONSTANTS.GROUP
        place = (q_row, head, sequence * 2 * heads + head, heads)
        loaded = load_queries(start, gl.minimum(start + 1, end), place, loaded, memory, waiting, CONSTANTS)
        for part in gl.static_range(GROUPS):
            group = group_of(part, turns, CONSTANTS)
            at, here = [k_start + first + part * ROWS, key_head * CONSTANTS.HEAD], k_ready.index(group)
            mbarrier.wait(k_free.index(group), turns & 1 ^ 1)
            mbarrier.expect(here, 2 * k_described.block_type.nbytes)
            tma.async_copy_global_to_shared(k_described, at, here, k_shared.index(group))
            tma.async_copy_global_to_shared(v_described, at, here, v_shared.index(group))
        # Here, so that what it waits for comes while blocks are waited for.
        tile = keys_at(following, tables, sizes, CONSTANTS)
        loaded = load_queries(start + 1, end, place, loaded, memory, waiting, CONSTANTS)
        for member in range(1, CONSTANTS.GROUP):
            place = (q_row, head + member, sequence * 2 * heads + head + member, heads)
            loaded = load_queries(start, end, place, loaded, memory, waiting, CONSTANTS)
        number = following
        turns += 1
    publish_end(lines, turns, numbers, number_ready, number_free, CONSTANTS)


@gluon.jit
def pass_by(count, loaded, ready, free, CONSTANTS: gl.constexpr):
    """So many blocks that the other group alone has keys for."""
    for _ in range(count):
        mbarrier.arrive(free.index(wait_for_block(loaded, ready, CONSTANTS)))
        loaded += 1
    return loaded


@gluon.jit
def seeing(first, block, view, LAYOUT: gl.constexpr, CONSTANTS: gl.constexpr):
    """Whether a key from `first` on (down) is seen by a query of a block (across)."""
    q_length, k_length, window, _, _ = view
    keys = first + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
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
def add_block(dk, dv, first, block, loaded, own, shared, barriers, view, c, CONSTANTS: gl.constexpr):
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
        weights = gl.where(seeing(first, block, view, SCORES, CONSTANTS), weights, 0.0)
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
def compute(group, shared, barriers, results, sizes, factors, CONSTANTS: gl.constexpr):
    """A group of warps that computes: its half of every tile of the program."""
    q_shared, do_shared, k_shared, v_shared, lse_shared, delta_shared, numbers = shared
    k_ready, k_free, ready, free, number_ready, number_free = barriers
    dk_ptr, dv_ptr, marks_ptr = results
    lines, heads, tiles, _, window = sizes
    c, scale = factors
    HEAD: gl.constexpr = CONSTANTS.HEAD
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    key_heads = heads // CONSTANTS.GROUP
    loaded, turns = 0, 0
    line = published(turns, numbers, number_ready, CONSTANTS)
    while line < lines:
        part = part_of(group, turns, CONSTANTS)
        start, end = walked_by_all(turns, numbers, CONSTANTS)
        own_start, full_start, full_end, own_end = walked_by(part, turns, numbers, CONSTANTS)
        # Where a group has no keys, its blocks are those of the other group.
        own_start, own_end = gl.where(own_end > own_start, own_start, end), gl.where(own_end > own_start, own_end, end)
        tile, _, q_length, k_length = lengths_of(turns, numbers, CONSTANTS)
        first = tile + part * ROWS
        view = (q_length, k_length, window, full_start, full_end)
        dk, dv = gl.zeros((ROWS, HEAD), gl.float32, SUMS), gl.zeros((ROWS, HEAD), gl.float32, SUMS)
        own = (k_shared.index(group), v_shared.index(group))
        mbarrier.wait(k_ready.index(group), turns & 1)
        for _member in range(CONSTANTS.GROUP):
            loaded = pass_by(own_start - start, loaded, ready, free, CONSTANTS)
            for block in range(own_start, own_end):
                dk, dv = add_block(
                    dk,
                    dv,
                    first,
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
        mbarrier.arrive(k_free.index(group))
        tile, k_start, _, k_length = lengths_of(turns, numbers, CONSTANTS)
        first = tile + part * ROWS
        inside = first + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS)) < k_length
        row = (k_start.to(gl.int64) + first) * key_heads + line % key_heads
        store_wide(dk_ptr, row, key_heads, first, k_length, scaled(dk, scale), HEAD)
        store_wide(dv_ptr, row, key_heads, first, k_length, dv + 0.0, HEAD)
        if any_not_finite(dk, inside) | any_not_finite(dv, inside):
            gl.store(marks_ptr + line * (tiles * GROUPS) + first // ROWS, 1)
        mbarrier.arrive(number_free.index(turns % SLOTS))
        turns += 1
        line = published(turns, numbers, number_ready, CONSTANTS)


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
    numbers = numbers_shared(CONSTANTS)
    k_ready, k_free = barriers_of(GROUPS, 1), barriers_of(GROUPS, 1)
    ready, free = barriers_of(STAGES, 1), barriers_of(STAGES, GROUPS)
    number_ready, number_free = barriers_of(SLOTS, 1), barriers_of(SLOTS, GROUPS)
    shared = (q_shared, do_shared, k_shared, v_shared, lse_shared, delta_shared, numbers)
    barriers = (k_ready, k_free, ready, free, number_ready, number_free)
    described = (q_described, do_described, k_described, v_described, rows_described)
    tables, results = (q_start_ptr, q_length_ptr, k_start_ptr, k_length_ptr), (dk_ptr, dv_ptr, marks_ptr)
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
