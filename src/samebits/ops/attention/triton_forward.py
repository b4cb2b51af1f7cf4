"""The kernel of attention's forward pass by Triton: a tile of queries against all its keys, or those of one split.

Splits of 2048 keys and blocks of 64 at logical positions, for prefill and decode alike. Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops.attention.triton_blocks import key_range, load_rows, store_rows
from samebits.ops.attention.triton_forward_softmax import softmax_of
from samebits.ops.attention.triton_merge import finished, merged


@triton.jit
def within(block, split, SPLIT: tl.constexpr):
    """The block, or the nearest border of the split."""
    return min(max(block, split * SPLIT), split * SPLIT + SPLIT)


@triton.jit(
    do_not_specialize=[
        "q_token",
        "q_head",
        "k_token",
        "k_head",
        "v_token",
        "v_head",
        "pages_row",
        "page_size",
        "states",
        "heads",
        "tiles",
        "splits",
        "window",
        "c",
        "cap_factor",
        "cap",
    ],
    do_not_specialize_on_alignment=[
        "q_ptr",
        "k_ptr",
        "v_ptr",
        "out_ptr",
        "lse_ptr",
        "sums_ptr",
        "totals_ptr",
        "maxima_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
        "pages_ptr",
    ],
)
def attention_forward(
    q_ptr,
    k_ptr,
    v_ptr,
    k_described,
    v_described,
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
    q_token: tl.int64,
    q_head: tl.int64,
    k_token: tl.int64,
    k_head: tl.int64,
    v_token: tl.int64,
    v_head: tl.int64,
    pages_row: tl.int64,
    states: tl.int64,
    page_size: tl.int32,
    heads: tl.int32,
    tiles: tl.int32,
    splits: tl.int32,
    window: tl.int32,
    c: tl.float32,
    cap_factor: tl.float32,
    cap: tl.float32,
    HEAD: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    TILE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PAGED: tl.constexpr,
    ALIGNED: tl.constexpr,
    EXACT: tl.constexpr,
    SEVERAL: tl.constexpr,
    ALONE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """A tile of PACK heads times TILE // PACK queries of one sequence against all keys that it sees.

    SEVERAL: there may be more than SPLIT blocks of keys; a program walks them split after split or, if ALONE, one split
    and leaves its state."""
    QUERIES: tl.constexpr = TILE // PACK
    program = tl.program_id(0)
    if ALONE:
        program, split = program // splits, program % splits
    # The tiles of one head run side by side, so that they meet its keys in the cache; those with most keys first.
    lines = heads // PACK
    line = program // tiles
    tile = tiles - 1 - program % tiles
    sequence, line = line // lines, line % lines
    q_length, k_length = tl.load(q_length_ptr + sequence).to(tl.int32), tl.load(k_length_ptr + sequence).to(tl.int32)
    nothing = tile * QUERIES >= q_length
    if ALONE:
        nothing = nothing | (split * SPLIT * 64 >= k_length)
    if nothing:
        return
    q_start, k_start = tl.load(q_start_ptr + sequence).to(tl.int64), tl.load(k_start_ptr + sequence).to(tl.int64)
    rows = tl.arange(0, TILE)
    queries = tile * QUERIES + rows // PACK
    key_head = line * PACK // GROUP
    inside = queries < q_length
    if QUERIES * PACK != TILE:
        inside = inside & (rows < QUERIES * PACK)
    offset = k_length - q_length
    positions = offset + queries
    k_ptr += key_head * k_head
    v_ptr += key_head * v_head
    if PAGED:
        pages_ptr += sequence * pages_row
    q_ptr += (q_start + tile * QUERIES) * q_token + line * PACK * q_head
    q = load_rows(q_ptr, rows // PACK * q_token + rows % PACK * q_head, inside, HEAD, PADDED, True, ALIGNED)
    last = offset + min(tile * QUERIES + QUERIES, q_length) - 1
    start, full_start, full_end, end = key_range(offset + tile * QUERIES, last, k_length, window, 64, CAUSAL, WINDOWED)
    first_row = (q_start + tile * QUERIES) * heads + line * PACK
    out_rows = rows // PACK * heads + rows % PACK
    if ALONE:
        # One split is all that this program does; attention_merge does the rest.
        start, full_start = within(start, split, SPLIT), within(full_start, split, SPLIT)
        full_end, end = within(full_end, split, SPLIT), within(end, split, SPLIT)
    elif SEVERAL:
        past_total = tl.zeros((TILE,), dtype=tl.float32)
        past_maximum = tl.full((TILE,), float("-inf"), dtype=tl.float32)
        first_split, last_split = start // SPLIT, tl.cdiv(end, SPLIT) - 1
        for split in tl.range(first_split, last_split, num_stages=1):
            sums, weights, largest = softmax_of(
                q,
                k_ptr,
                v_ptr,
                k_described,
                v_described,
                pages_ptr,
                positions,
                k_start,
                k_length,
                key_head,
                k_token,
                v_token,
                page_size,
                window,
                c,
                cap_factor,
                cap,
                within(start, split, SPLIT),
                within(full_start, split, SPLIT),
                within(full_end, split, SPLIT),
                within(end, split, SPLIT),
                HEAD,
                PADDED,
                TILE,
                CAUSAL,
                WINDOWED,
                SOFTCAP,
                DESCRIBED,
                PAGED,
                ALIGNED,
                EXACT,
            )
            # Registers hold one accumulator: what is merged so far waits in memory, in this program's own rows. One
            # thread may read there what another has written, and a third write it again: hence the barriers.
            if split > first_split:
                past = load_rows(sums_ptr + first_row * HEAD, out_rows * HEAD, inside, HEAD, PADDED, True, True)
                sums, weights, largest = merged(past, past_total, past_maximum, sums, weights, largest, c, EXACT)
            tl.debug_barrier()
            store_rows(sums_ptr + first_row * HEAD, out_rows * HEAD, inside, sums, HEAD, PADDED)
            tl.debug_barrier()
            past_total, past_maximum = weights, largest
        # The last split, often the only one, is merged without another way through memory.
        start, full_start = max(start, last_split * SPLIT), max(full_start, last_split * SPLIT)
        full_end, end = max(full_end, last_split * SPLIT), max(end, last_split * SPLIT)
    accumulator, total, maximum = softmax_of(
        q,
        k_ptr,
        v_ptr,
        k_described,
        v_described,
        pages_ptr,
        positions,
        k_start,
        k_length,
        key_head,
        k_token,
        v_token,
        page_size,
        window,
        c,
        cap_factor,
        cap,
        start,
        full_start,
        full_end,
        end,
        HEAD,
        PADDED,
        TILE,
        CAUSAL,
        WINDOWED,
        SOFTCAP,
        DESCRIBED,
        PAGED,
        ALIGNED,
        EXACT,
    )
    if ALONE:
        state = states * split + first_row
        store_rows(sums_ptr + state * HEAD, out_rows * HEAD, inside, accumulator, HEAD, PADDED)
        tl.store(maxima_ptr + state + out_rows, maximum, mask=inside)
        tl.store(totals_ptr + state + out_rows, total, mask=inside)
    else:
        if SEVERAL:
            merges = last_split > first_split
            if merges:
                past = load_rows(sums_ptr + first_row * HEAD, out_rows * HEAD, inside, HEAD, PADDED, True, True)
                accumulator, total, maximum = merged(
                    past, past_total, past_maximum, accumulator, total, maximum, c, EXACT
                )
        result, lse = finished(accumulator, total, maximum, c)
        store_rows(out_ptr + first_row * HEAD, out_rows * HEAD, inside, result, HEAD, PADDED)
        tl.store(lse_ptr + first_row + out_rows, lse, mask=inside)
