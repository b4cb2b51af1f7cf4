"""Launches of the matrix product by Triton on Hopper: the choice of a tile, descriptors of operands, the grid.

Knows nothing of autograd, validation or zero sizes; the public function does. A tile, its warps, its stages and the way
in which operands are loaded decide speed alone; the kernels are in triton_products.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.ops._triton.device import multiprocessors, on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import Described, bind, run
from samebits.ops._triton.repeated import Bound
from samebits.ops._triton.sizes import cdiv
from samebits.ops.matmul.launch_table import Launch, select
from samebits.ops.matmul.triton_again import Product, again, remember
from samebits.ops.matmul.triton_products import matmul_addressed, matmul_described
from samebits.ops.matmul.triton_tiles import offsets_of, tile_at

# The proofs about indices run the last two as they stand.
__all__ = ["gemm", "offsets_of", "tile_at"]


def described_layout(x: Tensor) -> bool | None:
    """Whether the tensor memory accelerator would read x transposed; None when it cannot read x at all."""
    if x.data_ptr() % 16:
        return None
    (rows, columns), (row_stride, column_stride), unit = x.shape, x.stride(), 16 // x.element_size()
    if (column_stride == 1 or columns == 1) and (rows == 1 or (row_stride >= columns and row_stride % unit == 0)):
        return False
    if (row_stride == 1 or rows == 1) and (columns == 1 or (column_stride >= rows and column_stride % unit == 0)):
        return True
    return None


def described_layouts(a: Tensor, b: Tensor, out: Tensor) -> tuple[bool, bool] | None:
    """How it would read both operands; None when it cannot read them, or not write the result."""
    if a.dtype == torch.float32:
        return None
    a_transposed, b_transposed = described_layout(a), described_layout(b)
    if a_transposed is None or b_transposed is None or described_layout(out) is not False:
        return None
    return a_transposed, b_transposed


def describe(x: Tensor, transposed: bool, tile_rows: int, tile_columns: int) -> Described:
    """x, or its transpose, cut into tiles."""
    (rows, columns), (stride, other) = x.shape, x.stride()
    if transposed:
        rows, columns, stride, tile_rows, tile_columns = columns, rows, other, tile_columns, tile_rows
    # The stride of a single row is never used, but it must look aligned.
    return Described(x, [rows, columns], [stride if rows > 1 else -(-columns // 16) * 16, 1], [tile_rows, tile_columns])


def contiguous_axis(stride_line: int, stride_k: int) -> str:
    """The axis of stride one; the empty word when there is none."""
    return "k" if stride_k == 1 else "line" if stride_line == 1 else ""


NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def programs_for(tiles: int, programs_per_sm: int, device: torch.device) -> int:
    """One program a tile, or as many as stay on the multiprocessors and walk over tiles."""
    return min(tiles, programs_per_sm * multiprocessors(device)) if programs_per_sm else tiles


def gemm(
    a_MK: Tensor,
    b_KN: Tensor,
    *,
    bias_N: Tensor | None = None,
    accumulator_MN: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    launch: Launch | None = None,
) -> Tensor:
    """round(a b + bias), or the accumulator with a b added to it, in place. Any strides; all sizes at least one.

    The result is rounded to `out_dtype`, that of `a` when None."""
    chosen = launch is None and accumulator_MN is None and (bias_N is None or bias_N.is_contiguous())
    known = again(a_MK, b_KN, bias_N, out_dtype) if chosen else None
    if known is not None:
        return known
    (m, k), n = a_MK.shape, b_KN.shape[1]
    out = accumulator_MN if accumulator_MN is not None else a_MK.new_empty(m, n, dtype=out_dtype or a_MK.dtype)
    layouts = described_layouts(a_MK, b_KN, out)
    described = layouts is not None
    launch = launch or forced_launch(Launch, described=described)
    chosen = chosen and launch is None
    if launch is None:
        wide = out.dtype == torch.float32
        launch = select(m, n, k, dtype=NAMES[a_MK.dtype], described=described, wide=wide)
    bias = None if bias_N is None else bias_N.contiguous()
    with on_device(a_MK):
        if launch.loads == "pointer":
            launch_addressed(launch, a_MK, b_KN, out, bias, resumed=accumulator_MN is not None)
        elif layouts is None:
            raise ValueError(
                f"matmul: launch {launch} takes 16-bit operands in rows or columns aligned to 16 bytes only"
            )
        else:
            resumed = accumulator_MN is not None
            bound = launch_described(launch, a_MK, b_KN, layouts, out, bias, resumed=resumed, kept=chosen)
            if bound is not None:
                remember(a_MK, b_KN, bias_N, out_dtype, Product(bound, (m, n), out.dtype, launch.swap))
    return out


def launch_described(
    launch: Launch,
    a: Tensor,
    b: Tensor,
    layouts: tuple[bool, bool],
    out: Tensor,
    bias: Tensor | None,
    *,
    resumed: bool,
    kept: bool,
) -> Bound | None:
    """Returns the launch where it is to be kept, to be made again with other operands of these sizes."""
    (m, k), n, (a_transposed, b_transposed) = a.shape, b.shape[1], layouts
    if launch.swap:
        # The transposed product: b.T times a.T, stored transposed.
        m, n = n, m
        left = describe(b, b_transposed, launch.tile_k, launch.tile_m)
        right = describe(a, a_transposed, launch.tile_n, launch.tile_k)
        a_transposed, b_transposed = not b_transposed, not a_transposed
        stored = describe(out, False, launch.tile_n, launch.tile_m)
    else:
        left = describe(a, a_transposed, launch.tile_m, launch.tile_k)
        right = describe(b, b_transposed, launch.tile_k, launch.tile_n)
        stored = describe(out, False, launch.tile_m, launch.tile_n // launch.parts)
    tiles = -(-m // launch.tile_m) * -(-n // launch.tile_n)
    programs = programs_for(tiles, launch.programs_per_sm, out.device)
    arguments = (left, right, stored, bias, m, n, k, programs)
    options: dict[str, Any] = {
        "warps": launch.warps,
        "stages": launch.stages,
        "A_TRANSPOSED": a_transposed,
        "B_TRANSPOSED": b_transposed,
        "OUT_TRANSPOSED": launch.swap,
        "RESUMED": resumed,
        "TILE_M": launch.tile_m,
        "TILE_N": launch.tile_n,
        "TILE_K": launch.tile_k,
        "GROUP": launch.group,
        "PARTS": launch.parts,
        # A resumed tile is loaded before its chain: two such tiles at once would not fit into shared memory.
        "FLATTEN": launch.programs_per_sm > 0 and not resumed,
    }
    run(matmul_described, programs, arguments, **options)
    return bind(matmul_described, programs, arguments, **options) if kept else None


def launch_addressed(launch: Launch, a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None, *, resumed: bool) -> None:
    a, b = (b.T, a.T) if launch.swap else (a, b)
    (m, k), n = a.shape, b.shape[1]
    arguments = (
        a,
        b,
        None if resumed else out,
        bias,
        out if resumed else None,
        m,
        n,
        k,
        a.stride(0),
        a.stride(1),
        b.stride(0),
        b.stride(1),
    )
    run(
        matmul_addressed,
        cdiv(m, launch.tile_m) * cdiv(n, launch.tile_n),
        arguments,
        warps=launch.warps,
        stages=launch.stages,
        A_CONTIGUOUS=contiguous_axis(a.stride(0), a.stride(1)),
        B_CONTIGUOUS=contiguous_axis(b.stride(1), b.stride(0)),
        OUT_TRANSPOSED=launch.swap,
        TILE_M=launch.tile_m,
        TILE_N=launch.tile_n,
        TILE_K=launch.tile_k,
        GROUP=launch.group,
    )
