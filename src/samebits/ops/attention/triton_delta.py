"""The row sums of attention's backward pass by Triton: delta = sum over the head of do * out, beside -lse."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv, next_power_of_2
from samebits.ops.attention.forms import Sequences
from samebits.ops.attention.triton_blocks import aligned, fold, load_rows

DELTA_ROWS = 16
"""Of a program."""


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


def row_sums(do: Tensor, out: Tensor, lse: Tensor, sequences: Sequences, statistics: Tensor) -> None:
    """-lse and delta of every row, into the lines of `statistics`."""
    heads, head = out.shape[1:]
    tiles, padded = cdiv(sequences.longest_query, DELTA_ROWS), max(16, next_power_of_2(head))
    sizes = (heads, tiles, statistics.shape[1])
    run(
        attention_delta,
        sequences.count * heads * tiles,
        (out, do, lse, statistics, sequences.q_start, sequences.q_length, *sizes, *do.stride()[:2]),
        warps=4,
        stages=1,
        ROWS=DELTA_ROWS,
        HEAD=head,
        PADDED=padded,
        STEPS=padded.bit_length() - 1,
        ALIGNED=aligned(out, do),
    )
