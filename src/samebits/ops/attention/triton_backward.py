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

from samebits.native.launch_numbers import forced
from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import Described, run
from samebits.ops.attention.forms import Rule, Sequences
from samebits.ops.attention.triton_blocks import (
    aligned,
    any_of,
    describable,
    describe,
    fold,
    key_range,
    load_rows,
    not_finite,
    query_range,
    store_rows,
)
from samebits.ops.attention.triton_walks import is_done, scaled, walk_keys, walk_queries


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
    out_ptr,
    do_ptr,
    lse_ptr,
    statistics_ptr,
    q_start_ptr,
    q_length_ptr,
    heads: tl.int32,
    tiles: tl.int32,
    pitch: tl.int64,
    do_token: tl.int64,
    do_head: tl.int64,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    PADDED: tl.constexpr,
    STEPS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
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


DQ_LAUNCH: Final = BackwardLaunch(queries=128, keys=64, warps=8, stages=3)
DK_DV_LAUNCH: Final = BackwardLaunch(queries=64, keys=64, warps=4, stages=2)
# Both kernels, for heads that leave shared memory for a third stage.
NARROW_HEAD: Final = BackwardLaunch(queries=64, keys=64, warps=4, stages=3)
WIDE_HEAD: Final = BackwardLaunch(queries=64, keys=64, warps=8, stages=1)
FLOAT32: Final = BackwardLaunch(queries=16, keys=16, described=False, warps=4, stages=1)
# Small tiles, so that little is computed again, and one kernel for whatever launch the first pass had.
CAREFUL_LAUNCH: Final = FLOAT32
DELTA_ROWS: Final = 16


def choose(q: Tensor, usual: BackwardLaunch) -> BackwardLaunch:
    """The launch for these sizes: narrow tiles where registers or shared memory are short."""
    if q.dtype == torch.float32:
        return FLOAT32
    head = q.shape[-1]
    return NARROW_HEAD if head <= 64 else usual if head <= 128 else WIDE_HEAD


def backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sequences: Sequences,
    rule: Rule,
    *,
    dq_launch: BackwardLaunch | None = None,
    dk_dv_launch: BackwardLaunch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
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
    factors = (rule.exponent_factor, rule.gradient_factor, rule.score_factor, rule.cap)

    def launch(
        kernel: Any,
        launch: BackwardLaunch,
        lines: int,
        length: int,
        axis: str,
        outputs: tuple[Tensor, ...],
        described: tuple[Any, ...] | None,
    ) -> None:
        """The kernel over tiles of an axis ("queries" or "keys"); once more, with care, where it was not finite."""
        first_tile = getattr(launch, axis)
        first_tiles = triton.cdiv(length, first_tile)
        wrong = torch.empty(sequences.count * lines * first_tiles, dtype=torch.int32, device=q.device)
        addressed = (None,) * (2 if kernel is attention_dq else 3)
        for careful, numbers in ((False, launch), (True, CAREFUL_LAUNCH)):
            given = addressed if careful or described is None else described
            tiles = triton.cdiv(length, getattr(numbers, axis))
            rest = (*table, *strides, pitch, heads, tiles, first_tile, first_tiles, rule.window, *factors)
            run(
                kernel,
                sequences.count * lines * tiles,
                (q, k, v, do, statistics, wrong, *outputs, *given, *rest),
                warps=numbers.warps,
                stages=numbers.stages,
                **sizes,
                QUERIES=numbers.queries,
                KEYS=numbers.keys,
                **flags,
                DESCRIBED=given is not addressed,
                CAREFUL=careful,
                **precision,
            )

    with on_device(q):
        tiles = triton.cdiv(sequences.longest_query, DELTA_ROWS)
        run(
            attention_delta,
            sequences.count * heads * tiles,
            (out, do, lse, statistics, *table[:2], heads, tiles, pitch, *do.stride()[:2]),
            warps=4,
            stages=1,
            ROWS=DELTA_ROWS,
            HEAD=head,
            PADDED=padded,
            STEPS=padded.bit_length() - 1,
            ALIGNED=aligned(out, do),
        )
        first = dq_launch or forced_launch or choose(q, DQ_LAUNCH)
        keys = (describe(k, first.keys), describe(v, first.keys)) if first.described and describable(k, v) else None
        launch(attention_dq, first, heads, sequences.longest_query, "queries", (dq,), keys)
        second = dk_dv_launch or forced_launch or choose(q, DK_DV_LAUNCH)
        queries = None
        if second.described and describable(q, do):
            lines = Described(statistics, [len(statistics), pitch], [pitch, 1], [1, second.queries])
            queries = (describe(q, second.queries), describe(do, second.queries), lines)
        launch(attention_dk_dv, second, k.shape[1], sequences.longest_key, "keys", (dk, dv), queries)
    return dq, dk, dv
