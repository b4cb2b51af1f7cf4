"""The two kernels whose tiles of logits never leave the chip: a product of which statistics are kept, or gradients.

Forward: a tile of 256 columns is one vocabulary block, and its statistics are stored. Backward: the tile becomes dz and
is stored in the storage dtype. Operands come through the tensor memory accelerator or through pointers. Knows no
launch."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.numerics.elementary.triton_generated import exp
from samebits.ops.logprob.triton_statistics import block_statistics
from samebits.ops.matmul.triton_tiles import addressed_step, store_described, tile_at

# M rows, V the vocabulary or a chunk of it, K the chain.


@triton.jit
def gradient_of_logits(logits, rows, columns, ids_ptr, lse_ptr, g_ptr, M):
    """dz = g * ((v == id) - exp(z - lse)) in float32; +0 in ignored rows, whose id is -1."""
    inside = rows < M
    ids = tl.load(ids_ptr + rows, mask=inside, other=-1)
    lse = tl.load(lse_ptr + rows, mask=inside, other=0.0)
    g = tl.load(g_ptr + rows, mask=inside, other=0.0)
    own = tl.where(columns[None, :] == ids[:, None], 1.0, 0.0)
    dz = g[:, None] * (own - exp(logits - lse[:, None]))
    return tl.where((ids >= 0)[:, None], dz, 0.0)


@triton.jit(
    do_not_specialize=["M", "V", "K", "first", "programs"],
    do_not_specialize_on_alignment=["ids_ptr", "lse_ptr", "g_ptr", "maxima_ptr", "sums_ptr", "selected_ptr"],
)
def logprob_described(
    hidden,
    weight,
    dz,
    ids_ptr,
    lse_ptr,
    g_ptr,
    maxima_ptr,
    sums_ptr,
    selected_ptr,
    M: tl.int32,
    V: tl.int32,
    K: tl.int32,
    first: tl.int32,
    programs: tl.int32,
    TILE_M: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """Operands come through the tensor memory accelerator, which fills what lies outside with +0."""
    tiles_m, tiles_n = tl.cdiv(M, TILE_M), tl.cdiv(V, 256)
    steps = tl.cdiv(K, TILE_K)
    # A second counter for what follows the chain: the loads of the next tile then depend on nothing that it uses.
    finished_tile = tl.program_id(0) - programs
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=FLATTEN):
        tile_m, tile_n = tile_at(tile, tiles_m, tiles_n, GROUP)
        m, n = tile_m * TILE_M, tile_n * 256
        logits = tl.zeros((TILE_M, 256), dtype=tl.float32)
        for step in range(steps):
            k = step * TILE_K
            logits = tl.dot(
                hidden.load([m, k]), weight.load([n, k]).T, logits, input_precision="ieee", out_dtype=tl.float32
            )
        finished_tile += programs
        tile_m, tile_n = tile_at(finished_tile, tiles_m, tiles_n, GROUP)
        m, n = tile_m * TILE_M, tile_n * 256
        rows, columns = m + tl.arange(0, TILE_M), n + tl.arange(0, 256)
        if dz is None:
            block_statistics(logits, rows, n, ids_ptr, maxima_ptr, sums_ptr, selected_ptr, M, V, TILE_M)
        else:
            gradient = gradient_of_logits(logits, rows, first + columns, ids_ptr, lse_ptr, g_ptr, M)
            store_described(dz, gradient, m, n, TILE_M, 256, 2, False)


@triton.jit(
    do_not_specialize=["M", "V", "K", "first", "stride_hm", "stride_hk", "stride_wv", "stride_wk", "stride_dz"],
    do_not_specialize_on_alignment=[
        "hidden_ptr",
        "weight_ptr",
        "dz_ptr",
        "ids_ptr",
        "lse_ptr",
        "g_ptr",
        "maxima_ptr",
        "sums_ptr",
        "selected_ptr",
    ],
)
def logprob_addressed(
    hidden_ptr,
    weight_ptr,
    dz_ptr,
    ids_ptr,
    lse_ptr,
    g_ptr,
    maxima_ptr,
    sums_ptr,
    selected_ptr,
    M: tl.int32,
    V: tl.int32,
    K: tl.int32,
    first: tl.int32,
    stride_hm: tl.int64,
    stride_hk: tl.int64,
    stride_wv: tl.int64,
    stride_wk: tl.int64,
    stride_dz: tl.int64,
    HIDDEN_CONTIGUOUS: tl.constexpr,
    WEIGHT_CONTIGUOUS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Operands of any strides, loaded through pointers."""
    tile_m, tile_n = tile_at(tl.program_id(0), tl.cdiv(M, TILE_M), tl.cdiv(V, 256), GROUP)
    rows, columns = tile_m * TILE_M + tl.arange(0, TILE_M), tile_n * 256 + tl.arange(0, 256)
    # Lines beyond the edge read line 0 again: nothing stores what they give, and the loads need no mask.
    hidden_lines, weight_lines = tl.where(rows < M, rows, 0), tl.where(columns < V, columns, 0)
    logits = tl.zeros((TILE_M, 256), dtype=tl.float32)
    whole = K // TILE_K * TILE_K
    for k in range(0, whole, TILE_K):
        logits = addressed_step(
            logits,
            hidden_ptr,
            weight_ptr,
            hidden_lines,
            weight_lines,
            k + tl.arange(0, TILE_K),
            stride_hm,
            stride_hk,
            stride_wk,
            stride_wv,
            K,
            HIDDEN_CONTIGUOUS,
            WEIGHT_CONTIGUOUS,
            False,
        )
    if whole < K:
        logits = addressed_step(
            logits,
            hidden_ptr,
            weight_ptr,
            hidden_lines,
            weight_lines,
            whole + tl.arange(0, TILE_K),
            stride_hm,
            stride_hk,
            stride_wk,
            stride_wv,
            K,
            HIDDEN_CONTIGUOUS,
            WEIGHT_CONTIGUOUS,
            True,
        )
    if dz_ptr is None:
        block_statistics(logits, rows, tile_n * 256, ids_ptr, maxima_ptr, sums_ptr, selected_ptr, M, V, TILE_M)
    else:
        gradient = gradient_of_logits(logits, rows, first + columns, ids_ptr, lse_ptr, g_ptr, M)
        offsets = rows[:, None].to(tl.int64) * stride_dz + columns[None, :]
        inside = (rows < M)[:, None] & (columns < V)[None, :]
        tl.store(dz_ptr + offsets, gradient.to(dz_ptr.dtype.element_ty), mask=inside)
