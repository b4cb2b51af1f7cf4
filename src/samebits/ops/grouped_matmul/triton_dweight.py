"""The gradient of the experts' weights by Triton: one chain over each expert's rows, all experts in one launch.

Rows are brought together by expert first. The 16s of a matrix unit are counted from an expert's first row. A tile, its
warps and its loads decide speed alone."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import Described, run
from samebits.ops._triton.sizes import cdiv
from samebits.ops.grouped_matmul.launch_table import select
from samebits.ops.grouped_matmul.triton_chain import addressed_chain, aligned, forced_grouped, together
from samebits.ops.matmul.launch_table import Launch
from samebits.ops.matmul.triton_kernel import NAMES, contiguous_axis
from samebits.ops.matmul.triton_tiles import offsets_of, start_of_chain, tile_at


@triton.jit
def place_of_program(ends_ptr, K, N, TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP: tl.constexpr):
    """The expert of this program, where its rows begin and end, and its tile of K and N."""
    tiles_k, tiles_n = tl.cdiv(K, TILE_M), tl.cdiv(N, TILE_N)
    expert = (tl.program_id(0) // (tiles_k * tiles_n)).to(tl.int64)
    tile_k, tile_n = tile_at(tl.program_id(0) % (tiles_k * tiles_n), tiles_k, tiles_n, GROUP)
    first = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0)
    return expert, first, tl.load(ends_ptr + expert), tile_k * TILE_M, tile_n * TILE_N


@triton.jit
def start_of_expert(accumulator_ptr, expert, ks, columns, K, N, TILE_M: tl.constexpr, TILE_N: tl.constexpr):
    """The accumulator an expert's chain starts from: +0, or what an earlier launch left."""
    if accumulator_ptr is None:
        return tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    else:
        return start_of_chain(accumulator_ptr + expert * K * N, ks, columns, K, N, TILE_M, TILE_N, False)


@triton.jit
def store_expert(out_ptr, accumulator_ptr, accumulator, expert, ks, columns, K, N):
    """Round once and store, or store the accumulator for a later launch."""
    offsets, inside = offsets_of(ks, columns, K, N, False)
    offsets += expert * K * N
    if accumulator_ptr is None:
        tl.store(out_ptr + offsets, accumulator.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(accumulator_ptr + offsets, accumulator, mask=inside)


@triton.jit(do_not_specialize=["K", "N"], do_not_specialize_on_alignment=["ends_ptr", "out_ptr", "accumulator_ptr"])
def grouped_dweight_described(
    x,
    dy,
    ends_ptr,
    out_ptr,
    accumulator_ptr,
    K: tl.int32,
    N: tl.int32,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The chain of x^T dy over each expert's rows, through the tensor memory accelerator.

    In the last step rows of the next expert become +0. An expert without rows keeps what it has."""
    expert, first, end, k, n = place_of_program(ends_ptr, K, N, TILE_M, TILE_N, GROUP)
    if first < end:
        ks, columns = k + tl.arange(0, TILE_M), n + tl.arange(0, TILE_N)
        accumulator = start_of_expert(accumulator_ptr, expert, ks, columns, K, N, TILE_M, TILE_N)
        begin, stop = first.to(tl.int32), end.to(tl.int32)
        whole = begin + (stop - begin) // TILE_K * TILE_K
        for row in range(begin, whole, TILE_K):
            accumulator = tl.dot(
                x.load([row, k]).T, dy.load([row, n]), accumulator, input_precision="ieee", out_dtype=tl.float32
            )
        if whole < stop:
            own = (whole + tl.arange(0, TILE_K) < stop)[:, None]
            x_tile, dy_tile = tl.where(own, x.load([whole, k]), 0.0), tl.where(own, dy.load([whole, n]), 0.0)
            accumulator = tl.dot(x_tile.T, dy_tile, accumulator, input_precision="ieee", out_dtype=tl.float32)
        store_expert(out_ptr, accumulator_ptr, accumulator, expert, ks, columns, K, N)


@triton.jit(
    do_not_specialize=["K", "N", "stride_xm", "stride_xk", "stride_dm", "stride_dn"],
    do_not_specialize_on_alignment=["x_ptr", "dy_ptr", "ends_ptr", "out_ptr", "accumulator_ptr"],
)
def grouped_dweight_addressed(
    x_ptr,
    dy_ptr,
    ends_ptr,
    out_ptr,
    accumulator_ptr,
    K: tl.int32,
    N: tl.int32,
    stride_xm: tl.int64,
    stride_xk: tl.int64,
    stride_dm: tl.int64,
    stride_dn: tl.int64,
    X_CONTIGUOUS: tl.constexpr,
    DY_CONTIGUOUS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The same with operands of any strides, loaded through pointers."""
    expert, first, end, k, n = place_of_program(ends_ptr, K, N, TILE_M, TILE_N, GROUP)
    if first < end:
        ks, columns = k + tl.arange(0, TILE_M), n + tl.arange(0, TILE_N)
        accumulator = addressed_chain(
            start_of_expert(accumulator_ptr, expert, ks, columns, K, N, TILE_M, TILE_N),
            x_ptr,
            dy_ptr,
            tl.where(ks < K, ks, 0),
            tl.where(columns < N, columns, 0),
            first,
            end,
            stride_xk,
            stride_xm,
            stride_dm,
            stride_dn,
            X_CONTIGUOUS,
            DY_CONTIGUOUS,
            TILE_K,
        )
        store_expert(out_ptr, accumulator_ptr, accumulator, expert, ks, columns, K, N)


def dweight(
    x_MK: Tensor,
    dy_MN: Tensor,
    rows_M: Tensor | None,
    ends_E: Tensor,
    sums_EKN: Tensor,
    *,
    resumed: bool,
    launch: Launch | None = None,
) -> None:
    """sums[e] <- the chain of x^T dy over the rows of e, from what the sums hold or from +0."""
    (m, k), (experts, _, n) = x_MK.shape, sums_EKN.shape
    described = aligned(x_MK, rows_M) and aligned(dy_MN, rows_M)
    launch = launch or forced_grouped(described)
    launch = launch or select(k * experts, n, experts, NAMES[x_MK.dtype], described=described)
    programs = experts * cdiv(k, launch.tile_m) * cdiv(n, launch.tile_n)
    tiles = {"TILE_M": launch.tile_m, "TILE_N": launch.tile_n, "TILE_K": launch.tile_k, "GROUP": launch.group}
    numbers = {"warps": launch.warps, "stages": launch.stages}
    with on_device(x_MK):
        x_MK, dy_MN = together(x_MK, rows_M), together(dy_MN, rows_M)
        where = (ends_E.clamp(max=m), None if resumed else sums_EKN, sums_EKN if resumed else None, k, n)
        if launch.loads == "tma":
            x = Described(x_MK.contiguous(), [m, k], [k, 1], [launch.tile_k, launch.tile_m])
            dy = Described(dy_MN.contiguous(), [m, n], [n, 1], [launch.tile_k, launch.tile_n])
            run(grouped_dweight_described, programs, (x, dy, *where), **numbers, **tiles)
        else:
            run(
                grouped_dweight_addressed,
                programs,
                (x_MK, dy_MN, *where, *x_MK.stride(), *dy_MN.stride()),
                **numbers,
                X_CONTIGUOUS=contiguous_axis(x_MK.stride(1), x_MK.stride(0)),
                DY_CONTIGUOUS=contiguous_axis(dy_MN.stride(1), dy_MN.stride(0)),
                **tiles,
            )
