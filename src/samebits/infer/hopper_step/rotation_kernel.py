"""Rotation of queries and keys, and keys and values into the paged cache, by one kernel of Triton.

The bits of `rope_rotate` in the layout "half" and of a copy. Sines and cosines are computed before the wait, from
positions that are there before the step begins. Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.ops.rope.triton_kernel import cosine_and_sine

# H query heads, then Hk key heads, then as many heads of values; P pairs a head.


@triton.jit
def halves_at(ptr, token_stride, token, heads, pairs, P):
    """Addresses of the first numbers of some pairs of some heads that lie side by side; the others come P behind."""
    return ptr + token * token_stride + heads.to(tl.int64)[:, None] * (2 * P) + pairs[None, :]


@triton.jit
def store_halves(pointers, P, a, b, inside):
    tl.store(pointers, a, mask=inside)
    tl.store(pointers + P, b, mask=inside)


@triton.jit
def rotated(a, b, c, s):
    """As rope_rotate has it: the product with s, its sign turned."""
    dtype = a.dtype
    a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.fma(a, c, b * (s * -1.0)).to(dtype), tl.fma(b, c, a * s).to(dtype)


@triton.jit(
    do_not_specialize=["q_token", "k_token", "v_token", "H", "K", "P", "factor"],
    do_not_specialize_on_alignment=[
        "q_ptr",
        "k_ptr",
        "v_ptr",
        "rotated_ptr",
        "keys_ptr",
        "values_ptr",
        "positions_ptr",
        "written_ptr",
        "frequencies_ptr",
    ],
)
def rotate_and_keep(
    q_ptr,
    k_ptr,
    v_ptr,
    rotated_ptr,
    keys_ptr,
    values_ptr,
    positions_ptr,
    written_ptr,
    frequencies_ptr,
    q_token: tl.int64,
    k_token: tl.int64,
    v_token: tl.int64,
    H: tl.int32,
    K: tl.int32,
    P: tl.int32,
    factor: tl.float32,
    SCALED: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """rotated (M, H, 2 P), and row written[token] of keys and values (rows, K, 2 P), from products' rows.

    A program has HEADS heads of one token; a masked load touches nothing."""
    gdc_launch_dependents()
    blocks = tl.cdiv(H + 2 * K, HEADS)
    token = (tl.program_id(0) // blocks).to(tl.int64)
    heads = tl.program_id(0) % blocks * HEADS + tl.arange(0, HEADS)
    pairs = tl.arange(0, PAIRS)
    # Before the wait: positions and rows of the cache, copied in before the step, and the table of frequencies.
    c, s = cosine_and_sine(positions_ptr, frequencies_ptr, token, pairs, P, factor, SCALED, False)
    row = tl.load(written_ptr + token)
    paired = (pairs < P)[None, :]
    of_queries = (heads < H)[:, None] & paired
    of_keys = ((heads >= H) & (heads < H + K))[:, None] & paired
    of_values = ((heads >= H + K) & (heads < H + 2 * K))[:, None] & paired
    q = halves_at(q_ptr, q_token, token, heads, pairs, P)
    k = halves_at(k_ptr, k_token, token, heads - H, pairs, P)
    v = halves_at(v_ptr, v_token, token, heads - H - K, pairs, P)
    # What follows is the product's; the rows of the cache that are written here, others read before in the last step.
    gdc_wait()
    q_a, q_b = tl.load(q, mask=of_queries, other=0.0), tl.load(q + P, mask=of_queries, other=0.0)
    k_a, k_b = tl.load(k, mask=of_keys, other=0.0), tl.load(k + P, mask=of_keys, other=0.0)
    v_a, v_b = tl.load(v, mask=of_values, other=0.0), tl.load(v + P, mask=of_values, other=0.0)
    y_a, y_b = rotated(tl.where(of_queries, q_a, k_a), tl.where(of_queries, q_b, k_b), c, s)
    store_halves(halves_at(rotated_ptr, 2 * P * H, token, heads, pairs, P), P, y_a, y_b, of_queries)
    store_halves(halves_at(keys_ptr, 2 * P * K, row, heads - H, pairs, P), P, y_a, y_b, of_keys)
    store_halves(halves_at(values_ptr, 2 * P * K, row, heads - H - K, pairs, P), P, v_a, v_b, of_values)
