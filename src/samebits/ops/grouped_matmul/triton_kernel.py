"""The grouped product by Triton on Hopper: matmul's chain for each expert, all experts in one launch.

Knows nothing of autograd, validation or zero sizes; the public function does. How many rows an expert has stays on the
device: a table of blocks of rows is made there, as long as it could have to be, and programs beyond its end do nothing.
A tile, its warps and its loads decide speed alone; device code and launch numbers are matmul's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import Described, run
from samebits.ops._triton.sizes import cdiv
from samebits.ops.grouped_matmul.launch_table import select
from samebits.ops.grouped_matmul.triton_chain import addressed_chain, aligned, forced_grouped, together
from samebits.ops.grouped_matmul.triton_dweight import dweight
from samebits.ops.matmul.launch_table import Launch
from samebits.ops.matmul.triton_kernel import NAMES, contiguous_axis, described_layout
from samebits.ops.matmul.triton_tiles import tile_at

__all__ = ["dweight", "forward"]

# Axes: M rows, E experts, K and N of their weights; T blocks of rows of one expert.


@triton.jit
def rows_of_tile(place, end, rows_ptr, TILE_M: tl.constexpr):
    """The rows of x and y in a tile that starts at `place` among the rows by expert, and which of them exist."""
    places = place + tl.arange(0, TILE_M)
    inside = places < end
    if rows_ptr is None:
        return tl.where(inside, places, 0), inside
    else:
        return tl.load(rows_ptr + places, mask=inside, other=0), inside


@triton.jit
def store_rows(y_ptr, accumulator, rows, inside, columns, N):
    """Round once and store, each row where it belongs."""
    offsets = rows[:, None].to(tl.int64) * N + columns[None, :]
    kept = inside[:, None] & (columns < N)[None, :]
    tl.store(y_ptr + offsets, accumulator.to(y_ptr.dtype.element_ty), mask=kept)


@triton.jit(
    do_not_specialize=["T", "E", "K", "N", "stride_xm", "stride_xk", "stride_we", "stride_wk", "stride_wn"],
    do_not_specialize_on_alignment=[
        "x_ptr",
        "weight_ptr",
        "rows_ptr",
        "ends_ptr",
        "experts_ptr",
        "places_ptr",
        "y_ptr",
    ],
)
def grouped_addressed(
    x_ptr,
    weight_ptr,
    rows_ptr,
    ends_ptr,
    experts_ptr,
    places_ptr,
    y_ptr,
    T: tl.int32,
    E: tl.int32,
    K: tl.int32,
    N: tl.int32,
    stride_xm: tl.int64,
    stride_xk: tl.int64,
    stride_we: tl.int64,
    stride_wk: tl.int64,
    stride_wn: tl.int64,
    X_CONTIGUOUS: tl.constexpr,
    W_CONTIGUOUS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """y[m] = x[m] weight[expert of m]; operands of any strides, loaded through pointers."""
    tile_t, tile_n = tile_at(tl.program_id(0), T, tl.cdiv(N, TILE_N), GROUP)
    expert = tl.load(experts_ptr + tile_t)
    if expert < E:
        rows, inside = rows_of_tile(tl.load(places_ptr + tile_t), tl.load(ends_ptr + expert), rows_ptr, TILE_M)
        columns = tile_n * TILE_N + tl.arange(0, TILE_N)
        # Lines beyond the edge read line 0 again: nothing stores what they give, and the loads need no mask.
        w_lines = tl.where(columns < N, columns, 0)
        accumulator = addressed_chain(
            tl.zeros((TILE_M, TILE_N), dtype=tl.float32),
            x_ptr,
            weight_ptr + expert * stride_we,
            rows,
            w_lines,
            0,
            K,
            stride_xm,
            stride_xk,
            stride_wk,
            stride_wn,
            X_CONTIGUOUS,
            W_CONTIGUOUS,
            TILE_K,
        )
        store_rows(y_ptr, accumulator, rows, inside, columns, N)


@triton.jit(
    do_not_specialize=["T", "E", "K", "N"],
    do_not_specialize_on_alignment=["rows_ptr", "ends_ptr", "experts_ptr", "places_ptr", "y_ptr"],
)
def grouped_described(
    x,
    weight,
    rows_ptr,
    ends_ptr,
    experts_ptr,
    places_ptr,
    y_ptr,
    T: tl.int32,
    E: tl.int32,
    K: tl.int32,
    N: tl.int32,
    W_TRANSPOSED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The same through the tensor memory accelerator, which fills what is outside with +0: x comes by expert.

    A tile's last rows may be another expert's: nothing stores what they give."""
    tile_t, tile_n = tile_at(tl.program_id(0), T, tl.cdiv(N, TILE_N), GROUP)
    expert = tl.load(experts_ptr + tile_t)
    if expert < E:
        place, n = tl.load(places_ptr + tile_t), tile_n * TILE_N
        at, of = place.to(tl.int32), expert.to(tl.int32)
        accumulator = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
        for k in range(0, K, TILE_K):
            x_tile = x.load([at, k])
            if W_TRANSPOSED:
                w_tile = tl.reshape(weight.load([of, n, k]), (TILE_N, TILE_K)).T
            else:
                w_tile = tl.reshape(weight.load([of, k, n]), (TILE_K, TILE_N))
            accumulator = tl.dot(x_tile, w_tile, accumulator, input_precision="ieee", out_dtype=tl.float32)
        rows, inside = rows_of_tile(place, tl.load(ends_ptr + expert), rows_ptr, TILE_M)
        store_rows(y_ptr, accumulator, rows, inside, n + tl.arange(0, TILE_N), N)


def block_table(ends_E: Tensor, rows: int, tile: int) -> tuple[Tensor, Tensor]:
    """Of each block of at most `tile` rows the expert and the first place; expert E where there are no more blocks.

    As many entries as rows could need however they are shared out; made on the device, without waiting for it."""
    experts = ends_E.shape[0]
    most = rows // tile + min(rows, experts)
    starts_E = torch.cat([ends_E.new_zeros(1), ends_E[:-1]])
    last_E = torch.cumsum(((ends_E - starts_E).clamp(min=0) + (tile - 1)) // tile, 0)
    blocks_T = torch.arange(most, device=ends_E.device)
    experts_T = torch.searchsorted(last_E, blocks_T, right=True)
    known_T = experts_T.clamp(max=experts - 1)
    before_E = torch.cat([last_E.new_zeros(1), last_E[:-1]])
    return experts_T, starts_E[known_T] + (blocks_T - before_E[known_T]) * tile


def described_weight(weight_EKN: Tensor) -> bool | None:
    """Whether the tensor memory accelerator would read the weights transposed; None when it cannot read them."""
    aligned = weight_EKN.shape[0] == 1 or weight_EKN.stride(0) * weight_EKN.element_size() % 16 == 0
    return described_layout(weight_EKN[0]) if aligned else None


def describe_weight(weight_EKN: Tensor, transposed: bool, launch: Launch) -> Described:
    seen = weight_EKN.transpose(1, 2) if transposed else weight_EKN
    tile = [launch.tile_n, launch.tile_k] if transposed else [launch.tile_k, launch.tile_n]
    (experts, rows, columns), (of_expert, of_row, _) = seen.shape, seen.stride()
    # The stride of a single row or expert is never used, but it must look aligned.
    row = of_row if rows > 1 else -(-columns // 16) * 16
    return Described(seen, [experts, rows, columns], [of_expert if experts > 1 else rows * row, row, 1], [1, *tile])


def forward(
    x_MK: Tensor,
    weight_EKN: Tensor,
    rows_M: Tensor | None,
    ends_E: Tensor,
    y_MN: Tensor,
    *,
    launch: Launch | None = None,
) -> None:
    """y[m] <- x[m] times the weight of its expert."""
    (m, k), (experts, _, n) = x_MK.shape, weight_EKN.shape
    transposed = None if x_MK.dtype == torch.float32 else described_weight(weight_EKN)
    described = transposed is not None and aligned(x_MK, rows_M)
    launch = launch or forced_grouped(described) or select(m, n, experts, NAMES[x_MK.dtype], described=described)
    with on_device(x_MK):
        ends_E = ends_E.clamp(max=m)
        experts_T, places_T = block_table(ends_E, m, launch.tile_m)
        t = experts_T.shape[0]
        programs = t * cdiv(n, launch.tile_n)
        tiles = {"TILE_M": launch.tile_m, "TILE_N": launch.tile_n, "TILE_K": launch.tile_k, "GROUP": launch.group}
        numbers = {"warps": launch.warps, "stages": launch.stages}
        where = (rows_M, ends_E, experts_T, places_T, y_MN, t, experts, k, n)
        if launch.loads == "tma":
            x_MK = together(x_MK, rows_M).contiguous()
            x = Described(x_MK, [m, k], [k, 1], [launch.tile_m, launch.tile_k])
            weight = describe_weight(weight_EKN, bool(transposed), launch)
            run(grouped_described, programs, (x, weight, *where), **numbers, W_TRANSPOSED=transposed, **tiles)
        else:
            strides = (*x_MK.stride(), *weight_EKN.stride())
            run(
                grouped_addressed,
                programs,
                (x_MK, weight_EKN, *where, *strides),
                **numbers,
                X_CONTIGUOUS=contiguous_axis(*x_MK.stride()),
                W_CONTIGUOUS=contiguous_axis(weight_EKN.stride(2), weight_EKN.stride(1)),
                **tiles,
            )
