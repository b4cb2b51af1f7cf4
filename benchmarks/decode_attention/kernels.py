"""Attention of at most 16 rows by Triton in three steps: scores, weights, sums of values. Knows no launch.

A row is a query of one head; the heads of a group are side by side. What a block of keys shrinks earlier sums by
follows from the largest scores before it, which are exact in any order: so scores of all blocks are computed side by
side, then their weights, and only the sums of values walk a split left to right, a few columns a program. Memory
between the steps is allocated by the launch, and starts at multiples of 16 bytes."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops.attention.triton_blocks import (
    add_product,
    any_of,
    capped,
    fold,
    key_rows,
    load_rows,
    not_finite,
    power_of_two,
    seen,
)
from samebits.ops.attention.triton_merge import finished, level_of

ROWS = tl.constexpr(16)
BLOCK = tl.constexpr(64)


@triton.jit
def row_of(program, heads, PACK: tl.constexpr):
    """(sequence, first head) of a line of PACK heads."""
    lines = heads // PACK
    return program // lines, program % lines * PACK


@triton.jit(
    do_not_specialize=[
        "q_token",
        "q_head",
        "k_token",
        "k_head",
        "pages_row",
        "page_size",
        "heads",
        "blocks",
        "window",
        "cap_factor",
        "cap",
    ],
    do_not_specialize_on_alignment=[
        "q_ptr",
        "k_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
        "pages_ptr",
    ],
)
def decode_scores(
    q_ptr,
    k_ptr,
    scores_ptr,
    maxima_ptr,
    q_start_ptr,
    q_length_ptr,
    k_start_ptr,
    k_length_ptr,
    pages_ptr,
    q_token: tl.int64,
    q_head: tl.int64,
    k_token: tl.int64,
    k_head: tl.int64,
    pages_row: tl.int64,
    page_size: tl.int32,
    heads: tl.int32,
    blocks: tl.int32,
    window: tl.int32,
    cap_factor: tl.float32,
    cap: tl.float32,
    HEAD: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PAGED: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One block's scores, -inf where a row does not see a key, and the largest of each row."""
    program, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    sequence, head = row_of(program, heads, PACK)
    q_length, k_length = tl.load(q_length_ptr + sequence).to(tl.int32), tl.load(k_length_ptr + sequence).to(tl.int32)
    if block * BLOCK >= k_length:
        return
    q_start, k_start = tl.load(q_start_ptr + sequence).to(tl.int64), tl.load(k_start_ptr + sequence).to(tl.int64)
    rows = tl.arange(0, ROWS)
    inside = rows // PACK < q_length
    q_ptr += q_start * q_token + head * q_head
    q = load_rows(q_ptr, rows // PACK * q_token + rows % PACK * q_head, inside, HEAD, PADDED, True, ALIGNED)
    keys = block * BLOCK + tl.arange(0, BLOCK)
    known = keys < k_length
    if PAGED:
        pages_ptr += sequence * pages_row
    memory = key_rows(keys, k_start, pages_ptr, page_size, known, PAGED)
    k = load_rows(k_ptr + head // GROUP * k_head, memory * k_token, known, HEAD, PADDED, True, ALIGNED)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee", out_dtype=tl.float32)
    scores, _ = capped(scores, cap_factor, cap, SOFTCAP)
    positions = k_length - q_length + rows // PACK
    scores = tl.where(seen(positions, keys, k_length, window, CAUSAL, WINDOWED), scores, float("-inf"))
    first = (program.to(tl.int64) * blocks + block) * ROWS
    tl.store(maxima_ptr + first + rows, tl.max(scores, 1))
    places = scores_ptr + (first + rows)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(places, scores, mask=inside[:, None])


@triton.jit(do_not_specialize=["heads", "blocks", "c"], do_not_specialize_on_alignment=["q_length_ptr", "k_length_ptr"])
def decode_weights(
    scores_ptr,
    maxima_ptr,
    weights_ptr,
    shrinks_ptr,
    added_ptr,
    raised_ptr,
    q_length_ptr,
    k_length_ptr,
    heads: tl.int32,
    blocks: tl.int32,
    c: tl.float32,
    PACK: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """One block's weights under the largest score of its split so far; what they fold to, and what shrinks before."""
    program, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    sequence, _ = row_of(program, heads, PACK)
    q_length, k_length = tl.load(q_length_ptr + sequence).to(tl.int32), tl.load(k_length_ptr + sequence).to(tl.int32)
    if block * BLOCK >= k_length:
        return
    rows = tl.arange(0, ROWS)
    inside = rows // PACK < q_length
    start = program.to(tl.int64) * blocks
    others = block // SPLIT * SPLIT + tl.arange(0, SPLIT)
    places = maxima_ptr + (start + others)[None, :] * ROWS + rows[:, None]
    largest = tl.load(places, mask=(others <= block)[None, :], other=float("-inf"))
    raised = tl.max(largest, 1)
    maximum = tl.max(tl.where((others < block)[None, :], largest, float("-inf")), 1)
    level = level_of(raised, c)
    shrink = tl.where(raised == maximum, 1.0, power_of_two(maximum * c - level, False))
    places = (start + block) * ROWS + rows
    scores = tl.load(
        scores_ptr + places[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], mask=inside[:, None], other=float("-inf")
    )
    weights = power_of_two(tl.fma(scores, tl.zeros_like(scores) + c, (0.0 - level)[:, None]), False)
    tl.store(shrinks_ptr + places, shrink)
    tl.store(raised_ptr + places, raised)
    tl.store(added_ptr + places[:, None] * 8 + tl.arange(0, 8)[None, :], fold(weights, ROWS, BLOCK, 3))
    rounded = weights.to(weights_ptr.dtype.element_ty)
    tl.store(weights_ptr + places[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], rounded)


@triton.jit
def walk_values(
    sums,
    lanes,
    weights_ptr,
    shrinks_ptr,
    added_ptr,
    v_ptr,
    pages_ptr,
    start,
    first,
    end,
    positions,
    k_start,
    k_length,
    v_token,
    page_size,
    window,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
    CAREFUL: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAGED: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Blocks first..end-1, left to right, into sums of some columns of the values and of the weights."""
    rows = tl.arange(0, ROWS)
    # Said here, so that what no product reads is fetched ahead, too; one or two masked blocks need no pipeline.
    for block in tl.range(first, end, num_stages=1 if MASKED else STAGES):
        keys = block * BLOCK + tl.arange(0, BLOCK)
        known = keys < k_length
        memory = key_rows(keys, k_start, pages_ptr, page_size, known, PAGED)
        v = load_rows(v_ptr, memory * v_token, known, COLUMNS, COLUMNS, MASKED, ALIGNED)
        places = (start + block) * ROWS + rows
        weights = tl.load(weights_ptr + places[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :])
        shrink = tl.load(shrinks_ptr + places)
        added = tl.load(added_ptr + places[:, None] * 8 + tl.arange(0, 8)[None, :])
        lanes = tl.fma(lanes, shrink[:, None], added)
        sums = sums * shrink[:, None]
        sees = None
        if CAREFUL:
            sees = seen(positions, keys, k_length, window, CAUSAL, WINDOWED)
        sums = add_product(sums, weights, sees, v, BLOCK, CAREFUL)
    return sums, lanes


@triton.jit(
    do_not_specialize=[
        "v_token",
        "v_head",
        "pages_row",
        "states",
        "page_size",
        "heads",
        "blocks",
        "splits",
        "window",
        "c",
    ],
    do_not_specialize_on_alignment=[
        "v_ptr",
        "out_ptr",
        "lse_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
        "pages_ptr",
    ],
)
def decode_values(
    weights_ptr,
    shrinks_ptr,
    added_ptr,
    raised_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    sums_ptr,
    totals_ptr,
    maxima_ptr,
    q_start_ptr,
    q_length_ptr,
    k_start_ptr,
    k_length_ptr,
    pages_ptr,
    v_token: tl.int64,
    v_head: tl.int64,
    pages_row: tl.int64,
    states: tl.int64,
    page_size: tl.int32,
    heads: tl.int32,
    blocks: tl.int32,
    splits: tl.int32,
    window: tl.int32,
    c: tl.float32,
    HEAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAGED: tl.constexpr,
    ALIGNED: tl.constexpr,
    SEVERAL: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Some columns of the values of one split; with SEVERAL splits their state, which attention_merge takes up."""
    SLICES: tl.constexpr = HEAD // COLUMNS
    column, program = tl.program_id(0) % SLICES * COLUMNS, tl.program_id(0) // SLICES
    split, program = program % splits, program // splits
    sequence, head = row_of(program, heads, PACK)
    q_length, k_length = tl.load(q_length_ptr + sequence).to(tl.int32), tl.load(k_length_ptr + sequence).to(tl.int32)
    # A sequence without keys has a row of zeros to write; of several splits the merge writes it.
    nothing = SEVERAL & (split * SPLIT * BLOCK >= k_length)
    if nothing:
        return
    q_start, k_start = tl.load(q_start_ptr + sequence).to(tl.int64), tl.load(k_start_ptr + sequence).to(tl.int64)
    rows = tl.arange(0, ROWS)
    inside = rows // PACK < q_length
    positions = k_length - q_length + rows // PACK
    v_ptr += head // GROUP * v_head + column
    if PAGED:
        pages_ptr += sequence * pages_row
    start = program.to(tl.int64) * blocks
    first, end = split * SPLIT, min(split * SPLIT + SPLIT, tl.cdiv(k_length, BLOCK))
    whole = max(first, min(end, k_length // BLOCK))
    sums, lanes = tl.zeros((ROWS, COLUMNS), dtype=tl.float32), tl.zeros((ROWS, 8), dtype=tl.float32)
    sums, lanes = walk_values(
        sums,
        lanes,
        weights_ptr,
        shrinks_ptr,
        added_ptr,
        v_ptr,
        pages_ptr,
        start,
        first,
        whole,
        positions,
        k_start,
        k_length,
        v_token,
        page_size,
        window,
        COLUMNS,
        STAGES,
        False,
        False,
        CAUSAL,
        WINDOWED,
        PAGED,
        ALIGNED,
    )
    sums, lanes = walk_values(
        sums,
        lanes,
        weights_ptr,
        shrinks_ptr,
        added_ptr,
        v_ptr,
        pages_ptr,
        start,
        whole,
        end,
        positions,
        k_start,
        k_length,
        v_token,
        page_size,
        window,
        COLUMNS,
        STAGES,
        True,
        False,
        CAUSAL,
        WINDOWED,
        PAGED,
        ALIGNED,
    )
    # What is not finite may have come from a key that its row does not see (0 * NaN): once more, with care.
    if any_of(not_finite(sums) & inside[:, None]):
        sums, lanes = walk_values(
            tl.zeros((ROWS, COLUMNS), dtype=tl.float32),
            tl.zeros((ROWS, 8), dtype=tl.float32),
            weights_ptr,
            shrinks_ptr,
            added_ptr,
            v_ptr,
            pages_ptr,
            start,
            first,
            end,
            positions,
            k_start,
            k_length,
            v_token,
            page_size,
            window,
            COLUMNS,
            STAGES,
            True,
            True,
            CAUSAL,
            WINDOWED,
            PAGED,
            ALIGNED,
        )
    total = tl.reshape(fold(lanes, ROWS, 8, 3), (ROWS,))
    last = (start + max(end - 1, 0)) * ROWS + rows
    maximum = tl.load(raised_ptr + last, mask=inside & (first < end), other=float("-inf"))
    result_rows = (q_start + rows // PACK) * heads + head + rows % PACK
    columns = column + tl.arange(0, COLUMNS)
    if SEVERAL:
        state = states * split + result_rows
        tl.store(sums_ptr + state[:, None] * HEAD + columns[None, :], sums, mask=inside[:, None])
        if column == 0:
            tl.store(totals_ptr + state, total, mask=inside)
            tl.store(maxima_ptr + state, maximum, mask=inside)
    else:
        result, lse = finished(sums, total, maximum, c)
        places = out_ptr + result_rows[:, None] * HEAD + columns[None, :]
        tl.store(places, result.to(out_ptr.dtype.element_ty), mask=inside[:, None])
        if column == 0:
            tl.store(lse_ptr + result_rows, lse, mask=inside)
