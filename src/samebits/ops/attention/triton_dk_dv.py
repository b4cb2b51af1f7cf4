"""The kernel of attention's backward pass that walks the queries for a tile of keys: dK and dV.

It owns what it writes, so nothing is added by atomics; heads of a group ascend. Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops.attention.triton_backward_walks import is_done, scaled, walk_queries
from samebits.ops.attention.triton_blocks import any_of, load_rows, not_finite, query_range, store_rows


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
        "dk_ptr",
        "dv_ptr",
        "q_start_ptr",
        "q_length_ptr",
        "k_start_ptr",
        "k_length_ptr",
    ],
)
def attention_dk_dv(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    statistics_ptr,
    wrong_ptr,
    dk_ptr,
    dv_ptr,
    q_described,
    do_described,
    statistics_described,
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
    """dV = sum of P dO, dK = scale * sum of dS Q: heads of the group ascending, in each head queries ascending."""
    key_heads = heads // GROUP
    line, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    wrong_ptr += line * first_tiles + tile * KEYS // first_tile
    if is_done(wrong_ptr, CAREFUL):
        return
    sequence, key_head = line // key_heads, line % key_heads
    q_length, k_length = tl.load(q_length_ptr + sequence).to(tl.int32), tl.load(k_length_ptr + sequence).to(tl.int32)
    if tile * KEYS >= k_length:
        return
    q_start, k_start = tl.load(q_start_ptr + sequence).to(tl.int64), tl.load(k_start_ptr + sequence).to(tl.int64)
    rows = tl.arange(0, KEYS)
    keys = tile * KEYS + rows
    known = keys < k_length
    offset = k_length - q_length
    token = k_start + tile * KEYS
    k = load_rows(k_ptr + token * k_token + key_head * k_head, rows * k_token, known, HEAD, PADDED, True, ALIGNED)
    v = load_rows(v_ptr + token * v_token + key_head * v_head, rows * v_token, known, HEAD, PADDED, True, ALIGNED)
    dk = tl.zeros((KEYS, PADDED), dtype=tl.float32)
    dv = tl.zeros((KEYS, PADDED), dtype=tl.float32)
    start, full_start, full_end, end = query_range(
        tile * KEYS, min(tile * KEYS + KEYS, k_length) - 1, offset, q_length, window, QUERIES, CAUSAL, WINDOWED
    )
    for member in range(GROUP):
        head = key_head * GROUP + member
        line = sequence * 2 * heads + head
        if CAREFUL:
            dk, dv = walk_queries(
                dk,
                dv,
                k,
                v,
                q_ptr,
                do_ptr,
                statistics_ptr,
                q_described,
                do_described,
                statistics_described,
                keys,
                q_start,
                q_length,
                k_length,
                offset,
                head,
                line,
                heads,
                pitch,
                q_token,
                q_head,
                do_token,
                do_head,
                window,
                c,
                cap_factor,
                cap,
                start,
                end,
                HEAD,
                PADDED,
                QUERIES,
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
            dk, dv = walk_queries(
                dk,
                dv,
                k,
                v,
                q_ptr,
                do_ptr,
                statistics_ptr,
                q_described,
                do_described,
                statistics_described,
                keys,
                q_start,
                q_length,
                k_length,
                offset,
                head,
                line,
                heads,
                pitch,
                q_token,
                q_head,
                do_token,
                do_head,
                window,
                c,
                cap_factor,
                cap,
                start,
                full_start,
                HEAD,
                PADDED,
                QUERIES,
                True,
                False,
                CAUSAL,
                WINDOWED,
                SOFTCAP,
                DESCRIBED,
                ALIGNED,
                EXACT,
            )
            dk, dv = walk_queries(
                dk,
                dv,
                k,
                v,
                q_ptr,
                do_ptr,
                statistics_ptr,
                q_described,
                do_described,
                statistics_described,
                keys,
                q_start,
                q_length,
                k_length,
                offset,
                head,
                line,
                heads,
                pitch,
                q_token,
                q_head,
                do_token,
                do_head,
                window,
                c,
                cap_factor,
                cap,
                full_start,
                full_end,
                HEAD,
                PADDED,
                QUERIES,
                False,
                False,
                CAUSAL,
                WINDOWED,
                SOFTCAP,
                DESCRIBED,
                ALIGNED,
                EXACT,
            )
            dk, dv = walk_queries(
                dk,
                dv,
                k,
                v,
                q_ptr,
                do_ptr,
                statistics_ptr,
                q_described,
                do_described,
                statistics_described,
                keys,
                q_start,
                q_length,
                k_length,
                offset,
                head,
                line,
                heads,
                pitch,
                q_token,
                q_head,
                do_token,
                do_head,
                window,
                c,
                cap_factor,
                cap,
                full_end,
                end,
                HEAD,
                PADDED,
                QUERIES,
                True,
                False,
                CAUSAL,
                WINDOWED,
                SOFTCAP,
                DESCRIBED,
                ALIGNED,
                EXACT,
            )
    if not CAREFUL:
        tl.store(wrong_ptr, any_of(not_finite(dk) | not_finite(dv)).to(tl.int32))
    place, offsets = (token * key_heads + key_head) * HEAD, rows * (key_heads * HEAD)
    store_rows(dk_ptr + place, offsets, known, scaled(dk, scale), HEAD, PADDED)
    store_rows(dv_ptr + place, offsets, known, dv + 0.0, HEAD, PADDED)
