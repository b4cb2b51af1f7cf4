"""Attention by Triton, forward: blocks of 64 keys at logical positions, left to right, for prefill and decode alike.

Knows nothing of autograd, validation or empty batches; the public function does. Tile, warps, stages, the way in which
keys are loaded and whether the heads of a group share a tile decide speed alone. The backward pass is beside this
file."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.numerics.elementary.triton_generated import log
from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run
from samebits.ops.attention.forms import BLOCK_KEYS, Rule, Sequences
from samebits.ops.attention.triton_backward import backward
from samebits.ops.attention.triton_blocks import (
    add_product,
    aligned,
    any_of,
    capped,
    describable,
    describe,
    fold,
    key_range,
    key_rows,
    load_rows,
    not_finite,
    power_of_two,
    seen,
    store_rows,
)

__all__ = ["Launch", "backward", "forward"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Decides speed, never bits."""

    tile: int = 64
    """Rows of a tile: queries, or queries times the heads of a group."""
    packed: bool = False
    """The heads of a group share a tile and so its keys: for few queries."""
    described: bool = True
    """Whole blocks of keys come through the tensor memory accelerator where it can take them."""
    warps: int = 4
    stages: int = 3


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


def choose(q: Tensor, group: int, longest_query: int) -> Launch:
    """The launch for these sizes."""
    head = q.shape[-1]
    packed = 1 < group <= 16 and longest_query <= 16
    if q.dtype == torch.float32:
        return Launch(tile=16 if head > 64 else 32, packed=packed, described=False, warps=4, stages=1)
    if longest_query * (group if packed else 1) <= 16:
        return Launch(tile=16, packed=packed, warps=4, stages=3 if head <= 128 else 2)
    return Launch(tile=64, packed=packed, warps=4, stages=3 if head <= 128 else 2)


def forward(
    q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule, *, launch: Launch | None = None
) -> tuple[Tensor, Tensor]:
    """(out, lse in powers of two): q (Tq, Hq, D), k and v (Tk, Hk, D); rows of no sequence are 0 and +inf."""
    (tokens, heads, head), group = q.shape, q.shape[1] // k.shape[1]
    asked = forced("launch")
    launch = launch or (asked if isinstance(asked, Launch) else None) or choose(q, group, sequences.longest_query)
    pack = group if launch.packed else 1
    out = torch.zeros(tokens, heads, head, dtype=q.dtype, device=q.device)
    lse = torch.full((tokens, heads), math.inf, dtype=torch.float32, device=q.device)
    tiles = triton.cdiv(sequences.longest_query, launch.tile // pack)
    described = launch.described and sequences.pages is None and q.dtype != torch.float32 and describable(k, v)
    pages = sequences.pages
    matrices = (describe(k, BLOCK_KEYS), describe(v, BLOCK_KEYS)) if described else (None, None)
    arguments = (
        q,
        k,
        v,
        *matrices,
        out,
        lse,
        sequences.q_start,
        sequences.q_length,
        sequences.k_start,
        sequences.k_length,
        pages,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        0 if pages is None else pages.stride(0),
        sequences.page_size,
        heads,
        tiles,
        rule.window,
        rule.exponent_factor,
        rule.score_factor,
        rule.cap,
    )
    with on_device(q):
        run(
            attention_forward,
            sequences.count * (heads // pack) * tiles,
            arguments,
            warps=launch.warps,
            stages=launch.stages,
            HEAD=head,
            PADDED=max(16, triton.next_power_of_2(head)),
            GROUP=group,
            PACK=pack,
            TILE=launch.tile,
            CAUSAL=rule.causal,
            WINDOWED=rule.window > 0,
            SOFTCAP=rule.softcap > 0,
            DESCRIBED=described,
            PAGED=pages is not None,
            ALIGNED=aligned(q, k, v),
            EXACT=q.dtype == torch.float32,
        )
    return out, lse
