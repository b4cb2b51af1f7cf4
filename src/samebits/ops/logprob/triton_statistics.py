"""What a vocabulary block of 256 logits leaves of every row by Triton, and how the blocks of a row are merged.

A block leaves its largest logit, its folded sum and, where it holds a row's token, that token's logit; blocks are
merged ascending. Knows no launch, and not where logits come from."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.numerics.elementary.triton_generated import exp, log
from samebits.ops._triton.rows import fold_by_halves

# M rows, V the vocabulary. The width of a block decides bits: it is `reference.BLOCK`, written 256 in the kernels.


@triton.jit
def block_statistics(logits, rows, n, ids_ptr, maxima_ptr, sums_ptr, selected_ptr, M, V, TILE_M: tl.constexpr):
    """What one vocabulary block leaves of every row. Missing columns are -inf: they add nothing."""
    columns, inside = n + tl.arange(0, 256), rows < M
    minus_infinity = float("-inf")
    logits = tl.where((columns < V)[None, :], logits, minus_infinity)
    largest = tl.max(logits, 1)
    place = (n // 256).to(tl.int64) * M + rows
    tl.store(maxima_ptr + place, largest, mask=inside)
    ids = tl.load(ids_ptr + rows, mask=inside, other=-1)
    selected = tl.max(tl.where(columns[None, :] == ids[:, None], logits, minus_infinity), 1)
    tl.store(selected_ptr + rows, selected, mask=(ids >= n) & (ids < n + 256))
    # A block of -inf alone sums to 0: its logits are taken as they are, for -inf minus -inf is not a number.
    shift = tl.where(largest == minus_infinity, 0.0, largest)
    tl.store(sums_ptr + place, fold_by_halves(exp(logits - shift[:, None]), TILE_M), mask=inside)


@triton.jit(
    do_not_specialize=["M", "V", "blocks"],
    do_not_specialize_on_alignment=["logits_ptr", "ids_ptr", "maxima_ptr", "sums_ptr", "selected_ptr"],
)
def logprob_known(
    logits_ptr,
    ids_ptr,
    maxima_ptr,
    sums_ptr,
    selected_ptr,
    M: tl.int32,
    V: tl.int32,
    blocks: tl.int32,
    TILE_M: tl.constexpr,
):
    """Logits that are in memory already, a vocabulary block of some rows a program."""
    rows, n = tl.program_id(0) // blocks * TILE_M + tl.arange(0, TILE_M), tl.program_id(0) % blocks * 256
    columns = n + tl.arange(0, 256)
    inside = (rows < M)[:, None] & (columns < V)[None, :]
    offsets = rows[:, None].to(tl.int64) * V + columns[None, :]
    logits = tl.load(logits_ptr + offsets, mask=inside, other=0.0)
    block_statistics(logits, rows, n, ids_ptr, maxima_ptr, sums_ptr, selected_ptr, M, V, TILE_M)


@triton.jit(
    do_not_specialize=["M", "blocks"],
    do_not_specialize_on_alignment=["maxima_ptr", "sums_ptr", "selected_ptr", "ids_ptr", "logprob_ptr", "lse_ptr"],
)
def merge_blocks(
    maxima_ptr,
    sums_ptr,
    selected_ptr,
    ids_ptr,
    logprob_ptr,
    lse_ptr,
    M: tl.int32,
    blocks: tl.int32,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """l = fma(l_b, exp(m_b - m), l), blocks ascending; (z - m) - log(l), and m + log(l)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < M
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    for start in range(0, blocks, AHEAD):
        numbers = start + tl.arange(0, AHEAD)
        places = numbers[:, None].to(tl.int64) * M + rows[None, :]
        here = (numbers < blocks)[:, None] & inside[None, :]
        largest = tl.maximum(largest, tl.max(tl.load(maxima_ptr + places, mask=here, other=float("-inf")), 0))
    total, place = tl.zeros((ROWS,), dtype=tl.float32), rows.to(tl.int64)
    for start in range(0, blocks, AHEAD):
        # Unrolled, so that the loads of several blocks are under way at once; the chain itself is one step a block.
        for step in tl.static_range(AHEAD):
            here = inside & (start + step < blocks)
            of_block = tl.load(maxima_ptr + place, mask=here, other=0.0)
            added = tl.load(sums_ptr + place, mask=here, other=0.0)
            total = tl.where(here, tl.fma(added, exp(of_block - largest), total), total)
            place += M
    logarithm = log(total)
    ids = tl.load(ids_ptr + rows, mask=inside, other=-1)
    selected = tl.load(selected_ptr + rows, mask=inside, other=0.0)
    tl.store(logprob_ptr + rows, tl.where(ids >= 0, (selected - largest) - logarithm, 0.0), mask=inside)
    tl.store(lse_ptr + rows, largest + logarithm, mask=inside)
