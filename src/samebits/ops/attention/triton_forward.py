"""The kernel of attention's forward pass by Triton: a tile of queries against all keys that it sees.

Blocks of 64 keys at logical positions, for prefill and decode alike. Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.numerics.elementary.triton_generated import log
from samebits.ops.attention.triton_blocks import any_of, fold, key_range, load_rows, not_finite, store_rows
from samebits.ops.attention.triton_forward_walk import walk


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
        "heads",
        "tiles",
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
    page_size: tl.int32,
    heads: tl.int32,
    tiles: tl.int32,
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
):
    """A tile of PACK heads times TILE // PACK queries of one sequence against all keys that it sees."""
    QUERIES: tl.constexpr = TILE // PACK
    # The tiles of one head run side by side, so that they meet its keys in the cache; those with most keys first.
    lines = heads // PACK
    line = tl.program_id(0) // tiles
    tile = tiles - 1 - tl.program_id(0) % tiles
    sequence, line = line // lines, line % lines
    q_length, k_length = tl.load(q_length_ptr + sequence).to(tl.int32), tl.load(k_length_ptr + sequence).to(tl.int32)
    if tile * QUERIES >= q_length:
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
    accumulator = tl.zeros((TILE, PADDED), dtype=tl.float32)
    lanes = tl.zeros((TILE, 8), dtype=tl.float32)
    maximum = tl.full((TILE,), float("-inf"), dtype=tl.float32)
    last = offset + min(tile * QUERIES + QUERIES, q_length) - 1
    start, full_start, full_end, end = key_range(offset + tile * QUERIES, last, k_length, window, 64, CAUSAL, WINDOWED)
    if WINDOWED:
        accumulator, lanes, maximum = walk(
            accumulator,
            lanes,
            maximum,
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
            HEAD,
            PADDED,
            TILE,
            True,
            False,
            CAUSAL,
            WINDOWED,
            SOFTCAP,
            DESCRIBED,
            PAGED,
            ALIGNED,
            EXACT,
        )
    accumulator, lanes, maximum = walk(
        accumulator,
        lanes,
        maximum,
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
        full_start,
        full_end,
        HEAD,
        PADDED,
        TILE,
        False,
        False,
        CAUSAL,
        WINDOWED,
        SOFTCAP,
        DESCRIBED,
        PAGED,
        ALIGNED,
        EXACT,
    )
    accumulator, lanes, maximum = walk(
        accumulator,
        lanes,
        maximum,
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
        full_end,
        end,
        HEAD,
        PADDED,
        TILE,
        True,
        False,
        CAUSAL,
        WINDOWED,
        SOFTCAP,
        DESCRIBED,
        PAGED,
        ALIGNED,
        EXACT,
    )
    # What is not finite may have come from a key that its row does not see (0 * NaN): once more, with care.
    if any_of(not_finite(accumulator)):
        accumulator, lanes, maximum = walk(
            tl.zeros((TILE, PADDED), dtype=tl.float32),
            tl.zeros((TILE, 8), dtype=tl.float32),
            tl.full((TILE,), float("-inf"), dtype=tl.float32),
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
            end,
            HEAD,
            PADDED,
            TILE,
            True,
            True,
            CAUSAL,
            WINDOWED,
            SOFTCAP,
            False,
            PAGED,
            ALIGNED,
            EXACT,
        )
    total = tl.reshape(fold(lanes, TILE, 8, 3), (TILE,))
    # A sum that underflowed to -0 becomes +0, whether or not zeros of unseen keys were added to it.
    scaled = tl.fma(
        accumulator, tl.zeros_like(accumulator) + tl.div_rn(1.0, total)[:, None], tl.zeros_like(accumulator)
    )
    result = tl.where((total == 0.0)[:, None], 0.0, scaled)
    level = tl.where(maximum == float("-inf"), 0.0, maximum) * c
    lse = tl.where(total == 0.0, float("inf"), level + log(total) * 1.4426950408889634)
    first_row = (q_start + tile * QUERIES) * heads + line * PACK
    out_rows = rows // PACK * heads + rows % PACK
    store_rows(out_ptr + first_row * HEAD, out_rows * HEAD, inside, result, HEAD, PADDED)
    tl.store(lse_ptr + first_row + out_rows, lse, mask=inside)
