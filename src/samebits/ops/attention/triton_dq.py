"""The kernel of attention's backward pass that walks the keys for a tile of queries: dQ.

It owns what it writes, so nothing is added by atomics. Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops.attention.triton_backward_walks import is_done, scaled, walk_keys
from samebits.ops.attention.triton_blocks import any_of, key_range, load_rows, not_finite, store_rows


@triton.jit(
    do_not_specialize=[
        "q_token",
        "q_head",
        "k_token",
        "k_head",
        "v_token",
        "v_head",
        "do_token",
        "do_head",
        "pitch",
        "heads",
        "tiles",
        "first_tile",
        "first_tiles",
        "window",
        "c",
        "scale",
        "cap_factor",
        "cap",
    ],
    do_not_specialize_on_alignment=[
        "q_ptr",
        "k_ptr",
        "v_ptr",
        "do_ptr",
        "statistics_ptr",
        "wrong_ptr",
        "dq_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
    ],
)
def attention_dq(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    statistics_ptr,
    wrong_ptr,
    dq_ptr,
    k_described,
    v_described,
    q_start_ptr,
    q_length_ptr,
    k_start_ptr,
    k_length_ptr,
    q_token: tl.int64,
    q_head: tl.int64,
    k_token: tl.int64,
    k_head: tl.int64,
    v_token: tl.int64,
    v_head: tl.int64,
    do_token: tl.int64,
    do_head: tl.int64,
    pitch: tl.int64,
    heads: tl.int32,
    tiles: tl.int32,
    first_tile: tl.int32,
    first_tiles: tl.int32,
    window: tl.int32,
    c: tl.float32,
    scale: tl.float32,
    cap_factor: tl.float32,
    cap: tl.float32,
    HEAD: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DESCRIBED: tl.constexpr,
    CAREFUL: tl.constexpr,
    ALIGNED: tl.constexpr,
    EXACT: tl.constexpr,
):
    """dQ = scale * sum over keys ascending of dS K, dS = P * (dO V - delta)."""
    line = tl.program_id(0) // tiles
    tile = tiles - 1 - tl.program_id(0) % tiles
    wrong_ptr += line * first_tiles + tile * QUERIES // first_tile
    if is_done(wrong_ptr, CAREFUL):
        return
    sequence, head = line // heads, line % heads
    q_length, k_length = tl.load(q_length_ptr + sequence).to(tl.int32), tl.load(k_length_ptr + sequence).to(tl.int32)
    if tile * QUERIES >= q_length:
        return
    q_start, k_start = tl.load(q_start_ptr + sequence).to(tl.int64), tl.load(k_start_ptr + sequence).to(tl.int64)
    key_head = head // GROUP
    rows = tl.arange(0, QUERIES)
    queries = tile * QUERIES + rows
    inside = queries < q_length
    offset = k_length - q_length
    positions = offset + queries
    token = q_start + tile * QUERIES
    q = load_rows(q_ptr + token * q_token + head * q_head, rows * q_token, inside, HEAD, PADDED, True, ALIGNED)
    do = load_rows(do_ptr + token * do_token + head * do_head, rows * do_token, inside, HEAD, PADDED, True, ALIGNED)
    places = statistics_ptr + (sequence * 2 * heads + head) * pitch + queries
    minus_lse = tl.load(places, mask=inside, other=0.0)
    delta = tl.load(places + heads * pitch, mask=inside, other=0.0)
    k_ptr += key_head * k_head
    v_ptr += key_head * v_head
    dq = tl.zeros((QUERIES, PADDED), dtype=tl.float32)
    last = offset + min(tile * QUERIES + QUERIES, q_length) - 1
    start, full_start, full_end, end = key_range(
        offset + tile * QUERIES, last, k_length, window, KEYS, CAUSAL, WINDOWED
    )
    if CAREFUL:
        dq = walk_keys(
            dq,
            q,
            do,
            minus_lse,
            delta,
            k_ptr,
            v_ptr,
            k_described,
            v_described,
            positions,
            k_start,
            k_length,
            key_head,
            k_token,
            v_token,
            window,
            c,
            cap_factor,
            cap,
            start,
            end,
            HEAD,
            PADDED,
            KEYS,
            True,
            True,
            CAUSAL,
            WINDOWED,
            SOFTCAP,
            DESCRIBED,
            ALIGNED,
            EXACT,
        )
    else:
        if WINDOWED:
            dq = walk_keys(
                dq,
                q,
                do,
                minus_lse,
                delta,
                k_ptr,
                v_ptr,
                k_described,
                v_described,
                positions,
                k_start,
                k_length,
                key_head,
                k_token,
                v_token,
                window,
                c,
                cap_factor,
                cap,
                start,
                full_start,
                HEAD,
                PADDED,
                KEYS,
                True,
                False,
                CAUSAL,
                WINDOWED,
                SOFTCAP,
                DESCRIBED,
                ALIGNED,
                EXACT,
            )
        dq = walk_keys(
            dq,
            q,
            do,
            minus_lse,
            delta,
            k_ptr,
            v_ptr,
            k_described,
            v_described,
            positions,
            k_start,
            k_length,
            key_head,
            k_token,
            v_token,
            window,
            c,
            cap_factor,
            cap,
            full_start,
            full_end,
            HEAD,
            PADDED,
            KEYS,
            False,
            False,
            CAUSAL,
            WINDOWED,
            SOFTCAP,
            DESCRIBED,
            ALIGNED,
            EXACT,
        )
        dq = walk_keys(
            dq,
            q,
            do,
            minus_lse,
            delta,
            k_ptr,
            v_ptr,
            k_described,
            v_described,
            positions,
            k_start,
            k_length,
            key_head,
            k_token,
            v_token,
            window,
            c,
            cap_factor,
            cap,
            full_end,
            end,
            HEAD,
            PADDED,
            KEYS,
            True,
            False,
            CAUSAL,
            WINDOWED,
            SOFTCAP,
            DESCRIBED,
            ALIGNED,
            EXACT,
        )
        tl.store(wrong_ptr, any_of(not_finite(dq)).to(tl.int32))
    dq_ptr += (token * heads + head) * HEAD
    store_rows(dq_ptr, rows * (heads * HEAD), inside, scaled(dq, scale), HEAD, PADDED)
