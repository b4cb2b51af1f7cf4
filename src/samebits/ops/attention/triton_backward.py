"""Attention by Triton, backward: two passes that own what they write, so nothing is added by atomics.

One pass walks the keys for a tile of queries (dQ), the other the queries for a tile of keys (dK, dV), heads of a group
ascending. Weights are recomputed from the saved log-sum-exp: memory grows with the tokens, not with their square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import Described, run
from samebits.ops.attention.forms import Rule, Sequences
from samebits.ops.attention.triton_blocks import (
    aligned,
    capped,
    describable,
    describe,
    fold,
    key_range,
    load_rows,
    power_of_two,
    query_range,
    seen,
)
from samebits.ops.launching import forced


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardLaunch:
    """Decides speed, never bits. Tiles are multiples of 16, the width of the tensor core's fused addition."""

    queries: int = 64
    keys: int = 64
    described: bool = True
    warps: int = 4
    stages: int = 2


@triton.jit(
    do_not_specialize=["heads", "tiles", "pitch", "do_token", "do_head"],
    do_not_specialize_on_alignment=["out_ptr", "do_ptr", "lse_ptr", "statistics_ptr", "q_start_ptr", "q_length_ptr"],
)
def attention_delta(
    out_ptr, do_ptr, lse_ptr, statistics_ptr, q_start_ptr, q_length_ptr, heads: tl.int32, tiles: tl.int32,
    pitch: tl.int64, do_token: tl.int64, do_head: tl.int64,
    ROWS: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, STEPS: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """delta = sum over the head of do * out: 256 lanes, folded by halves; those past the head are +0.

    -lse and delta are stored in a line a head, (sequences, 2, heads, pitch), so that a tile reads them as one piece."""
    line, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    sequence, head = line // heads, line % heads
    q_length = tl.load(q_length_ptr + sequence).to(tl.int32)
    if tile * ROWS >= q_length:
        return
    queries = tile * ROWS + tl.arange(0, ROWS)
    known = queries < q_length
    tokens = tl.load(q_start_ptr + sequence).to(tl.int64) + queries
    rows = tokens * heads + head
    out = load_rows(out_ptr, rows * HEAD, known, HEAD, PADDED, True, ALIGNED)
    do = load_rows(do_ptr, tokens * do_token + head * do_head, known, HEAD, PADDED, True, ALIGNED)
    # Lanes past PADDED would add their +0 first: to -0 it makes a difference, so it is added here.
    products = tl.fma(do.to(tl.float32), out.to(tl.float32), tl.zeros((ROWS, PADDED), dtype=tl.float32)) + 0.0
    places = statistics_ptr + (sequence * 2 * heads + head) * pitch + queries
    tl.store(places, 0.0 - tl.load(lse_ptr + rows, mask=known, other=0.0), mask=known)
    tl.store(places + heads * pitch, tl.reshape(fold(products, ROWS, PADDED, STEPS), (ROWS,)), mask=known)


@triton.jit
def scaled(sums, factor):
    """sums * factor, with +0 for a sum that underflowed to -0: zeros of unseen pairs may or may not have been added."""
    return tl.fma(sums, tl.zeros_like(sums) + factor, tl.zeros_like(sums))


@triton.jit
def walk_keys(
    dq, q, do, minus_lse, delta, k_ptr, v_ptr, k_described, v_described, positions, k_start, k_length, key_head,
    k_token, v_token, window, c, cap_factor, cap, first, end,
    HEAD: tl.constexpr, PADDED: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr, DESCRIBED: tl.constexpr, ALIGNED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Blocks of keys first..end-1, left to right, into the gradient of a tile of queries."""
    for block in tl.range(first, end, num_stages=1 if MASKED else None):
        keys = block * KEYS + tl.arange(0, KEYS)
        known = keys < k_length
        if DESCRIBED:
            row = (k_start + block * KEYS).to(tl.int32)
            k = k_described.load([row, key_head * HEAD])
            v = v_described.load([row, key_head * HEAD])
            if MASKED:
                # Beyond the sequence lies another one: nothing of it may meet the zeros of dS.
                k = tl.where(known[:, None], k, tl.zeros_like(k))
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
        if MASKED:
            ds = tl.where(seen(positions, keys, k_length, window, CAUSAL, WINDOWED), ds, 0.0)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee", out_dtype=tl.float32)
    return dq


@triton.jit
def walk_queries(
    dk, dv, k, v, q_ptr, do_ptr, statistics_ptr, q_described, do_described, statistics_described, keys, q_start,
    q_length, k_length, offset, head, line, heads, pitch, q_token, q_head, do_token, do_head, window, c, cap_factor,
    cap, first, end,
    HEAD: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr, DESCRIBED: tl.constexpr, ALIGNED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Blocks of queries first..end-1 of one head, into the gradients of a tile of keys.

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
            if MASKED:
                # Beyond the sequence lies another one: nothing of it may meet the zeros of P and dS.
                q = tl.where(inside[:, None], q, tl.zeros_like(q))
                do = tl.where(inside[:, None], do, tl.zeros_like(do))
        else:
            q = load_rows(q_ptr, tokens * q_token + head * q_head, inside, HEAD, PADDED, MASKED, ALIGNED)
            do = load_rows(do_ptr, tokens * do_token + head * do_head, inside, HEAD, PADDED, MASKED, ALIGNED)
            minus_lse = tl.load(statistics_ptr + line * pitch + queries, mask=inside, other=0.0)
            delta = tl.load(statistics_ptr + (line + heads) * pitch + queries, mask=inside, other=0.0)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee", out_dtype=tl.float32)
        scores, bent = capped(scores, cap_factor, cap, SOFTCAP)
        p = power_of_two(tl.fma(scores, tl.zeros_like(scores) + c, minus_lse[None, :]), EXACT)
        if MASKED:
            sees = tl.trans(seen(offset + queries, keys, k_length, window, CAUSAL, WINDOWED)) & inside[None, :]
            p = tl.where(sees, p, 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee", out_dtype=tl.float32)
        dp = tl.dot(v, tl.trans(do), input_precision="ieee", out_dtype=tl.float32)
        ds = p * (dp - delta[None, :])
        if SOFTCAP:
            ds = ds * tl.fma(0.0 - bent, bent, tl.full(bent.shape, 1.0, tl.float32))
        if MASKED:
            ds = tl.where(sees, ds, 0.0)
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee", out_dtype=tl.float32)
    return dk, dv


@triton.jit(
    do_not_specialize=["q_token", "q_head", "k_token", "k_head", "v_token", "v_head", "do_token", "do_head", "pitch",
                       "heads", "tiles", "window", "c", "scale", "cap_factor", "cap"],
    do_not_specialize_on_alignment=["q_ptr", "k_ptr", "v_ptr", "do_ptr", "statistics_ptr", "dq_ptr", "q_start_ptr",
                                    "q_length_ptr", "k_start_ptr", "k_length_ptr"],
)  # fmt: skip
def attention_dq(
    q_ptr, k_ptr, v_ptr, do_ptr, statistics_ptr, dq_ptr, k_described, v_described, q_start_ptr, q_length_ptr,
    k_start_ptr, k_length_ptr, q_token: tl.int64, q_head: tl.int64, k_token: tl.int64, k_head: tl.int64,
    v_token: tl.int64, v_head: tl.int64, do_token: tl.int64, do_head: tl.int64, pitch: tl.int64, heads: tl.int32,
    tiles: tl.int32, window: tl.int32, c: tl.float32, scale: tl.float32, cap_factor: tl.float32, cap: tl.float32,
    HEAD: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr, DESCRIBED: tl.constexpr,
    ALIGNED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """dQ = scale * sum over keys ascending of dS K, dS = P * (dO V - delta)."""
    line = tl.program_id(0) // tiles
    tile = tiles - 1 - tl.program_id(0) % tiles
    sequence, head = line // heads, line % heads
    q_length, k_length = tl.load(q_length_ptr + sequence).to(tl.int32), tl.load(k_length_ptr + sequence).to(tl.int32)
    if tile * QUERIES >= q_length:
        return
    q_start, k_start = tl.load(q_start_ptr + sequence).to(tl.int64), tl.load(k_start_ptr + sequence).to(tl.int64)
    key_head = head // GROUP
    queries = tile * QUERIES + tl.arange(0, QUERIES)
    inside = queries < q_length
    offset = k_length - q_length
    positions = offset + queries
    tokens = q_start + queries
    q = load_rows(q_ptr, tokens * q_token + head * q_head, inside, HEAD, PADDED, True, ALIGNED)
    do = load_rows(do_ptr, tokens * do_token + head * do_head, inside, HEAD, PADDED, True, ALIGNED)
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
    if WINDOWED:
        dq = walk_keys(
            dq, q, do, minus_lse, delta, k_ptr, v_ptr, k_described, v_described, positions, k_start, k_length,
            key_head, k_token, v_token, window, c, cap_factor, cap, start, full_start,
            HEAD, PADDED, KEYS, True, CAUSAL, WINDOWED, SOFTCAP, DESCRIBED, ALIGNED, EXACT,
        )  # fmt: skip
    dq = walk_keys(
        dq, q, do, minus_lse, delta, k_ptr, v_ptr, k_described, v_described, positions, k_start, k_length,
        key_head, k_token, v_token, window, c, cap_factor, cap, full_start, full_end,
        HEAD, PADDED, KEYS, False, CAUSAL, WINDOWED, SOFTCAP, DESCRIBED, ALIGNED, EXACT,
    )  # fmt: skip
    dq = walk_keys(
        dq, q, do, minus_lse, delta, k_ptr, v_ptr, k_described, v_described, positions, k_start, k_length,
        key_head, k_token, v_token, window, c, cap_factor, cap, full_end, end,
        HEAD, PADDED, KEYS, True, CAUSAL, WINDOWED, SOFTCAP, DESCRIBED, ALIGNED, EXACT,
    )  # fmt: skip
    columns = tl.arange(0, PADDED)
    pointers = dq_ptr + (tokens * heads + head)[:, None] * HEAD + columns[None, :]
    tl.store(pointers, scaled(dq, scale).to(dq_ptr.dtype.element_ty), mask=inside[:, None] & (columns < HEAD)[None, :])


@triton.jit(
    do_not_specialize=["q_token", "q_head", "k_token", "k_head", "v_token", "v_head", "do_token", "do_head", "pitch",
                       "heads", "tiles", "window", "c", "scale", "cap_factor", "cap"],
    do_not_specialize_on_alignment=["q_ptr", "k_ptr", "v_ptr", "do_ptr", "statistics_ptr", "dk_ptr", "dv_ptr",
                                    "q_start_ptr", "q_length_ptr", "k_start_ptr", "k_length_ptr"],
)  # fmt: skip
def attention_dk_dv(
    q_ptr, k_ptr, v_ptr, do_ptr, statistics_ptr, dk_ptr, dv_ptr, q_described, do_described, statistics_described,
    q_start_ptr, q_length_ptr, k_start_ptr, k_length_ptr, q_token: tl.int64, q_head: tl.int64, k_token: tl.int64,
    k_head: tl.int64, v_token: tl.int64, v_head: tl.int64, do_token: tl.int64, do_head: tl.int64, pitch: tl.int64,
    heads: tl.int32, tiles: tl.int32, window: tl.int32, c: tl.float32, scale: tl.float32, cap_factor: tl.float32,
    cap: tl.float32, HEAD: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr, DESCRIBED: tl.constexpr,
    ALIGNED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """dV = sum of P dO, dK = scale * sum of dS Q: heads of the group ascending, in each head queries ascending."""
    key_heads = heads // GROUP
    line, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    sequence, key_head = line // key_heads, line % key_heads
    q_length, k_length = tl.load(q_length_ptr + sequence).to(tl.int32), tl.load(k_length_ptr + sequence).to(tl.int32)
    if tile * KEYS >= k_length:
        return
    q_start, k_start = tl.load(q_start_ptr + sequence).to(tl.int64), tl.load(k_start_ptr + sequence).to(tl.int64)
    keys = tile * KEYS + tl.arange(0, KEYS)
    known = keys < k_length
    offset = k_length - q_length
    k = load_rows(k_ptr, (k_start + keys) * k_token + key_head * k_head, known, HEAD, PADDED, True, ALIGNED)
    v = load_rows(v_ptr, (k_start + keys) * v_token + key_head * v_head, known, HEAD, PADDED, True, ALIGNED)
    dk = tl.zeros((KEYS, PADDED), dtype=tl.float32)
    dv = tl.zeros((KEYS, PADDED), dtype=tl.float32)
    start, full_start, full_end, end = query_range(
        tile * KEYS, min(tile * KEYS + KEYS, k_length) - 1, offset, q_length, window, QUERIES, CAUSAL, WINDOWED
    )
    for member in range(GROUP):
        head = key_head * GROUP + member
        line = sequence * 2 * heads + head
        dk, dv = walk_queries(
            dk, dv, k, v, q_ptr, do_ptr, statistics_ptr, q_described, do_described, statistics_described, keys,
            q_start, q_length, k_length, offset, head, line, heads, pitch, q_token, q_head, do_token, do_head, window,
            c, cap_factor, cap, start, full_start,
            HEAD, PADDED, QUERIES, True, CAUSAL, WINDOWED, SOFTCAP, DESCRIBED, ALIGNED, EXACT,
        )  # fmt: skip
        dk, dv = walk_queries(
            dk, dv, k, v, q_ptr, do_ptr, statistics_ptr, q_described, do_described, statistics_described, keys,
            q_start, q_length, k_length, offset, head, line, heads, pitch, q_token, q_head, do_token, do_head, window,
            c, cap_factor, cap, full_start, full_end,
            HEAD, PADDED, QUERIES, False, CAUSAL, WINDOWED, SOFTCAP, DESCRIBED, ALIGNED, EXACT,
        )  # fmt: skip
        dk, dv = walk_queries(
            dk, dv, k, v, q_ptr, do_ptr, statistics_ptr, q_described, do_described, statistics_described, keys,
            q_start, q_length, k_length, offset, head, line, heads, pitch, q_token, q_head, do_token, do_head, window,
            c, cap_factor, cap, full_end, end,
            HEAD, PADDED, QUERIES, True, CAUSAL, WINDOWED, SOFTCAP, DESCRIBED, ALIGNED, EXACT,
        )  # fmt: skip
    columns = tl.arange(0, PADDED)
    places = ((k_start + keys) * key_heads + key_head)[:, None] * HEAD + columns[None, :]
    stored = known[:, None] & (columns < HEAD)[None, :]
    tl.store(dk_ptr + places, scaled(dk, scale).to(dk_ptr.dtype.element_ty), mask=stored)
    tl.store(dv_ptr + places, (dv + 0.0).to(dv_ptr.dtype.element_ty), mask=stored)


DQ_LAUNCH: Final = BackwardLaunch(queries=128, keys=64, warps=8, stages=3)
DK_DV_LAUNCH: Final = BackwardLaunch(queries=64, keys=64, warps=4, stages=2)
WIDE_HEAD: Final = BackwardLaunch(queries=64, keys=64, warps=8, stages=1)
FLOAT32: Final = BackwardLaunch(queries=16, keys=16, described=False, warps=4, stages=1)
DELTA_ROWS: Final = 16


def choose(q: Tensor, usual: BackwardLaunch) -> BackwardLaunch:
    """The launch for these sizes: narrow tiles where registers or shared memory are short."""
    if q.dtype == torch.float32:
        return FLOAT32
    return usual if q.shape[-1] <= 128 else WIDE_HEAD


def backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sequences: Sequences, rule: Rule, *,
    dq_launch: BackwardLaunch | None = None, dk_dv_launch: BackwardLaunch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dq, dk, dv), shaped like q, k, v and contiguous; rows of no sequence are 0."""
    heads, head = q.shape[1:]
    asked = forced("launch")
    forced_launch = asked if isinstance(asked, BackwardLaunch) else None
    # Lines of a multiple of 16 bytes, as the tensor memory accelerator wants them.
    pitch, padded = triton.cdiv(sequences.longest_query, 4) * 4, max(16, triton.next_power_of_2(head))
    statistics = torch.empty(sequences.count * 2 * heads, pitch, dtype=torch.float32, device=q.device)
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *do.stride()[:2])
    table = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    sizes = {"HEAD": head, "PADDED": padded, "GROUP": heads // k.shape[1]}
    flags = {"CAUSAL": rule.causal, "WINDOWED": rule.window > 0, "SOFTCAP": rule.softcap > 0}
    precision = {"ALIGNED": aligned(q, k, v, do), "EXACT": q.dtype == torch.float32}

    def launch(kernel: Any, launch: BackwardLaunch, lines: int, length: int, tile: int, tensors: tuple[Any, ...],
               described: bool) -> None:  # fmt: skip
        tiles = triton.cdiv(length, tile)
        factors = (rule.exponent_factor, rule.gradient_factor, rule.score_factor, rule.cap)
        rest = (*table, *strides, pitch, heads, tiles, rule.window, *factors)
        run(
            kernel, sequences.count * lines * tiles, (*tensors, *rest), warps=launch.warps, stages=launch.stages,
            **sizes, QUERIES=launch.queries, KEYS=launch.keys, **flags, DESCRIBED=described, **precision,
        )  # fmt: skip

    with on_device(q):
        tiles = triton.cdiv(sequences.longest_query, DELTA_ROWS)
        run(
            attention_delta, sequences.count * heads * tiles,
            (out, do, lse, statistics, *table[:2], heads, tiles, pitch, *do.stride()[:2]), warps=4, stages=1,
            ROWS=DELTA_ROWS, HEAD=head, PADDED=padded, STEPS=padded.bit_length() - 1, ALIGNED=aligned(out, do),
        )  # fmt: skip
        first = dq_launch or forced_launch or choose(q, DQ_LAUNCH)
        described = first.described and describable(k, v)
        keys = (describe(k, first.keys), describe(v, first.keys)) if described else (None, None)
        tensors = (q, k, v, do, statistics, dq, *keys)
        launch(attention_dq, first, heads, sequences.longest_query, first.queries, tensors, described)
        second = dk_dv_launch or forced_launch or choose(q, DK_DV_LAUNCH)
        described = second.described and describable(q, do)
        lines = Described(statistics, [len(statistics), pitch], [pitch, 1], [1, second.queries])
        queries = (describe(q, second.queries), describe(do, second.queries), lines) if described else (None,) * 3
        tensors = (q, k, v, do, statistics, dk, dv, *queries)
        launch(attention_dk_dv, second, k.shape[1], sequences.longest_key, second.keys, tensors, described)
    return dq, dk, dv
