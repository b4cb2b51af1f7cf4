"""The two walks of attention's backward pass: over the keys of a tile of queries, over the queries of a tile of keys.

Knows no launch. `attention_dq` in triton_dq.py and `attention_dk_dv` in triton_dk_dv.py say which blocks a walk
covers."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops.attention.triton_blocks import add_product, capped, load_rows, power_of_two, seen


@triton.jit
def is_done(wrong_ptr, CAREFUL: tl.constexpr):
    """Whether a careful pass has nothing to do, because the first pass over this tile found all of it finite.

    What is not finite may have come from a key that its query does not see (0 * NaN): it is computed once more, with
    care, by a kernel of its own, because the care takes registers."""
    if CAREFUL:
        return tl.load(wrong_ptr) == 0
    else:
        tl.store(wrong_ptr, 0)
        return False


@triton.jit
def scaled(sums, factor):
    """sums * factor, with +0 for a sum that underflowed to -0: zeros of unseen pairs may or may not have been added."""
    return tl.fma(sums, tl.zeros_like(sums) + factor, tl.zeros_like(sums))


@triton.jit
def walk_keys(
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
    first,
    end,
    HEAD: tl.constexpr,
    PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
    CAREFUL: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DESCRIBED: tl.constexpr,
    ALIGNED: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Blocks of keys first..end-1, left to right, into the gradient of a tile of queries.

    Keys that are not finite reach queries that do not see them, unless this is CAREFUL."""
    for block in tl.range(first, end, num_stages=1 if MASKED else None):
        keys = block * KEYS + tl.arange(0, KEYS)
        known = keys < k_length
        if DESCRIBED:
            row = (k_start + block * KEYS).to(tl.int32)
            k = k_described.load([row, key_head * HEAD])
            v = v_described.load([row, key_head * HEAD])
        else:
            k = load_rows(k_ptr, (k_start + keys) * k_token, known, HEAD, PADDED, MASKED, ALIGNED)
            v = load_rows(v_ptr, (k_start + keys) * v_token, known, HEAD, PADDED, MASKED, ALIGNED)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee", out_dtype=tl.float32)
        scores, bent = capped(scores, cap_factor, cap, SOFTCAP)
        p = power_of_two(tl.fma(scores, tl.zeros_like(scores) + c, minus_lse[:, None]), EXACT)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee", out_dtype=tl.float32)
        ds = p * (dp - delta[:, None])
        if SOFTCAP:
            ds = ds * tl.fma(0.0 - bent, bent, tl.full(bent.shape, 1.0, tl.float32))
        sees = None
        if MASKED:
            sees = seen(positions, keys, k_length, window, CAUSAL, WINDOWED)
            ds = tl.where(sees, ds, 0.0)
        dq = add_product(dq, ds.to(k.dtype), sees, k, KEYS, CAREFUL)
    return dq


@triton.jit
def walk_queries(
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
    first,
    end,
    HEAD: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    MASKED: tl.constexpr,
    CAREFUL: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DESCRIBED: tl.constexpr,
    ALIGNED: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Blocks of queries first..end-1 of one head, into the gradients of a tile of keys.

    Queries and output gradients that are not finite reach keys that they do not see, unless this is CAREFUL.

    Scores stand transposed here, keys down and queries across: the same chains over the head."""
    for block in tl.range(first, end, num_stages=1 if MASKED else None):
        queries = block * QUERIES + tl.arange(0, QUERIES)
        tokens = q_start + queries
        inside = queries < q_length
        if DESCRIBED:
            row = (q_start + block * QUERIES).to(tl.int32)
            q = q_described.load([row, head * HEAD])
            do = do_described.load([row, head * HEAD])
            minus_lse = tl.reshape(statistics_described.load([line, block * QUERIES]), (QUERIES,))
            delta = tl.reshape(statistics_described.load([line + heads, block * QUERIES]), (QUERIES,))
        else:
            q = load_rows(q_ptr, tokens * q_token + head * q_head, inside, HEAD, PADDED, MASKED, ALIGNED)
            do = load_rows(do_ptr, tokens * do_token + head * do_head, inside, HEAD, PADDED, MASKED, ALIGNED)
            minus_lse = tl.load(statistics_ptr + line * pitch + queries, mask=inside, other=0.0)
            delta = tl.load(statistics_ptr + (line + heads) * pitch + queries, mask=inside, other=0.0)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee", out_dtype=tl.float32)
        scores, bent = capped(scores, cap_factor, cap, SOFTCAP)
        p = power_of_two(tl.fma(scores, tl.zeros_like(scores) + c, minus_lse[None, :]), EXACT)
        sees = None
        if MASKED:
            sees = tl.trans(seen(offset + queries, keys, k_length, window, CAUSAL, WINDOWED)) & inside[None, :]
            p = tl.where(sees, p, 0.0)
        dv = add_product(dv, p.to(do.dtype), sees, do, QUERIES, CAREFUL)
        dp = tl.dot(v, tl.trans(do), input_precision="ieee", out_dtype=tl.float32)
        ds = p * (dp - delta[None, :])
        if SOFTCAP:
            ds = ds * tl.fma(0.0 - bent, bent, tl.full(bent.shape, 1.0, tl.float32))
        if MASKED:
            ds = tl.where(sees, ds, 0.0)
        dk = add_product(dk, ds.to(q.dtype), sees, q, QUERIES, CAREFUL)
    return dk, dv
