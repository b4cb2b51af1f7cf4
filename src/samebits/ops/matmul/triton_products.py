"""The two kernels of the matrix product: operands through the tensor memory accelerator, or through pointers.

One chain over K, ascending, in float32, rounded once: an output belongs to one accumulator, which meets the products in
order of k. Knows no launch."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops.matmul.triton_tiles import (
    add_bias,
    addressed_step,
    offsets_of,
    resume_described,
    start_of_chain,
    store_described,
    tile_at,
)

# Axes: M rows of a, N columns of b, K the chain. M and N may be swapped by the host (Launch.swap).


@triton.jit(do_not_specialize=["M", "N", "K", "programs"], do_not_specialize_on_alignment=["bias_ptr"])
def matmul_described(
    a,
    b,
    out,
    bias_ptr,
    M: tl.int32,
    N: tl.int32,
    K: tl.int32,
    programs: tl.int32,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    OUT_TRANSPOSED: tl.constexpr,
    RESUMED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """Operands come through the tensor memory accelerator, which fills what lies outside with +0."""
    tiles_m, tiles_n = tl.cdiv(M, TILE_M), tl.cdiv(N, TILE_N)
    steps = tl.cdiv(K, TILE_K)
    # A second counter for the stores: the loads of the next tile then depend on nothing that the stores use.
    stored_tile = tl.program_id(0) - programs
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=FLATTEN):
        tile_m, tile_n = tile_at(tile, tiles_m, tiles_n, GROUP)
        m, n = tile_m * TILE_M, tile_n * TILE_N
        if RESUMED:
            accumulator = resume_described(out, m, n, TILE_M, TILE_N, PARTS, OUT_TRANSPOSED)
        else:
            accumulator = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
        for step in range(steps):
            k = step * TILE_K
            a_tile = a.load([k, m]).T if A_TRANSPOSED else a.load([m, k])
            b_tile = b.load([n, k]).T if B_TRANSPOSED else b.load([k, n])
            accumulator = tl.dot(a_tile, b_tile, accumulator, input_precision="ieee", out_dtype=tl.float32)
        stored_tile += programs
        tile_m, tile_n = tile_at(stored_tile, tiles_m, tiles_n, GROUP)
        m, n = tile_m * TILE_M, tile_n * TILE_N
        rows, columns = m + tl.arange(0, TILE_M), n + tl.arange(0, TILE_N)
        accumulator = add_bias(accumulator, bias_ptr, rows, columns, M, N, OUT_TRANSPOSED)
        store_described(out, accumulator, m, n, TILE_M, TILE_N, PARTS, OUT_TRANSPOSED)


@triton.jit(
    do_not_specialize=["M", "N", "K", "stride_am", "stride_ak", "stride_bk", "stride_bn"],
    do_not_specialize_on_alignment=["a_ptr", "b_ptr", "out_ptr", "bias_ptr", "accumulator_ptr"],
)
def matmul_addressed(
    a_ptr,
    b_ptr,
    out_ptr,
    bias_ptr,
    accumulator_ptr,
    M: tl.int32,
    N: tl.int32,
    K: tl.int32,
    stride_am: tl.int64,
    stride_ak: tl.int64,
    stride_bk: tl.int64,
    stride_bn: tl.int64,
    A_CONTIGUOUS: tl.constexpr,
    B_CONTIGUOUS: tl.constexpr,
    OUT_TRANSPOSED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Operands of any strides, loaded through pointers."""
    tile_m, tile_n = tile_at(tl.program_id(0), tl.cdiv(M, TILE_M), tl.cdiv(N, TILE_N), GROUP)
    rows, columns = tile_m * TILE_M + tl.arange(0, TILE_M), tile_n * TILE_N + tl.arange(0, TILE_N)
    # Lines beyond the edge read line 0 again: nothing stores what they give, and the loads need no mask.
    a_lines, b_lines = tl.where(rows < M, rows, 0), tl.where(columns < N, columns, 0)
    accumulator = start_of_chain(accumulator_ptr, rows, columns, M, N, TILE_M, TILE_N, OUT_TRANSPOSED)
    whole = K // TILE_K * TILE_K
    for first in range(0, whole, TILE_K):
        accumulator = addressed_step(
            accumulator,
            a_ptr,
            b_ptr,
            a_lines,
            b_lines,
            first + tl.arange(0, TILE_K),
            stride_am,
            stride_ak,
            stride_bk,
            stride_bn,
            K,
            A_CONTIGUOUS,
            B_CONTIGUOUS,
            False,
        )
    if whole < K:
        accumulator = addressed_step(
            accumulator,
            a_ptr,
            b_ptr,
            a_lines,
            b_lines,
            whole + tl.arange(0, TILE_K),
            stride_am,
            stride_ak,
            stride_bk,
            stride_bn,
            K,
            A_CONTIGUOUS,
            B_CONTIGUOUS,
            True,
        )
    offsets, inside = offsets_of(rows, columns, M, N, OUT_TRANSPOSED)
    if accumulator_ptr is None:
        accumulator = add_bias(accumulator, bias_ptr, rows, columns, M, N, OUT_TRANSPOSED)
        tl.store(out_ptr + offsets, accumulator.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(accumulator_ptr + offsets, accumulator, mask=inside)
