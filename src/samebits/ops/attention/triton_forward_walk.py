"""The walk of attention's forward pass by Triton: over blocks of 64 keys, left to right, for a tile of queries.

Knows no launch. `softmax_of` in triton_forward_softmax.py says which blocks a walk covers."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops.attention.triton_blocks import add_product, capped, fold, key_rows, load_rows, power_of_two, seen


@triton.jit
def attend(
    accumulator,
    lanes,
    maximum,
    q,
    k,
    v,
    positions,
    keys,
    k_length,
    window,
    c,
    cap_factor,
    cap,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    CAREFUL: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    EXACT: tl.constexpr,
):
    """One block of 64 keys. A row that sees none of them is left as it was; if values it does not see are not finite,
    only where this is CAREFUL."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee", out_dtype=tl.float32)
    scores, _ = capped(scores, cap_factor, cap, SOFTCAP)
    inside = None
    if MASKED:
        inside = seen(positions, keys, k_length, window, CAUSAL, WINDOWED)
        scores = tl.where(inside, scores, float("-inf"))
    raised = tl.maximum(maximum, tl.max(scores, 1))
    level = tl.where(raised == float("-inf"), 0.0, raised) * c
    # Exactly 1 where the maximum stays, even if its product with c overflows.
    shrink = tl.where(raised == maximum, 1.0, power_of_two(maximum * c - level, EXACT))
    weights = power_of_two(tl.fma(scores, tl.zeros_like(scores) + c, (0.0 - level)[:, None]), EXACT)
    lanes = tl.fma(lanes, shrink[:, None], fold(weights, TILE, 64, 3))
    accumulator = accumulator * shrink[:, None]
    accumulator = add_product(accumulator, weights.to(v.dtype), inside, v, 64, CAREFUL)
    return accumulator, lanes, raised


@triton.jit
def walk(
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
    first,
    end,
    HEAD: tl.constexpr,
    PADDED: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    CAREFUL: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PAGED: tl.constexpr,
    ALIGNED: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Blocks of keys first..end-1, left to right, with a mask or without need of one."""
    # A masked block needs no pipeline: there are one or two of them.
    for block in tl.range(first, end, num_stages=1 if MASKED else None):
        keys = block * 64 + tl.arange(0, 64)
        if DESCRIBED:
            row = (k_start + block * 64).to(tl.int32)
            k = k_described.load([row, key_head * HEAD])
            v = v_described.load([row, key_head * HEAD])
        else:
            known = keys < k_length
            memory = key_rows(keys, k_start, pages_ptr, page_size, known, PAGED)
            k = load_rows(k_ptr, memory * k_token, known, HEAD, PADDED, MASKED, ALIGNED)
            v = load_rows(v_ptr, memory * v_token, known, HEAD, PADDED, MASKED, ALIGNED)
        accumulator, lanes, maximum = attend(
            accumulator,
            lanes,
            maximum,
            q,
            k,
            v,
            positions,
            keys,
            k_length,
            window,
            c,
            cap_factor,
            cap,
            TILE,
            MASKED,
            CAREFUL,
            CAUSAL,
            WINDOWED,
            SOFTCAP,
            EXACT,
        )
    return accumulator, lanes, maximum
