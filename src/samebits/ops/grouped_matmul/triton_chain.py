"""What both directions of the grouped product share by Triton: the chain through pointers, rows brought together.

The steps of the chain are matmul's own."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.forced import forced_launch
from samebits.ops.grouped_matmul.launch_table import GROUPED
from samebits.ops.matmul.launch_table import Launch
from samebits.ops.matmul.triton_tiles import addressed_step


@triton.jit
def addressed_chain(
    accumulator,
    a_ptr,
    b_ptr,
    a_lines,
    b_lines,
    first,
    end,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    A_CONTIGUOUS: tl.constexpr,
    B_CONTIGUOUS: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """The chain over first .. end - 1, in steps counted from `first`; the last one may be short."""
    whole = first + (end - first) // TILE_K * TILE_K
    for k in range(first, whole, TILE_K):
        ks = k + tl.arange(0, TILE_K)
        accumulator = addressed_step(
            accumulator,
            a_ptr,
            b_ptr,
            a_lines,
            b_lines,
            ks,
            stride_am,
            stride_ak,
            stride_bk,
            stride_bn,
            end,
            A_CONTIGUOUS,
            B_CONTIGUOUS,
            False,
        )
    if whole < end:
        ks = whole + tl.arange(0, TILE_K)
        accumulator = addressed_step(
            accumulator,
            a_ptr,
            b_ptr,
            a_lines,
            b_lines,
            ks,
            stride_am,
            stride_ak,
            stride_bk,
            stride_bn,
            end,
            A_CONTIGUOUS,
            B_CONTIGUOUS,
            True,
        )
    return accumulator


def together(x: Tensor, rows_M: Tensor | None) -> Tensor:
    return x if rows_M is None else x.index_select(0, rows_M)


def aligned(x_MK: Tensor, rows_M: Tensor | None) -> bool:
    """Whether the tensor memory accelerator can read the rows of x, brought together or as they are.

    A copy has memory of its own, which is aligned."""
    copied = rows_M is not None or not x_MK.is_contiguous()
    whole_rows = x_MK.shape[1] * x_MK.element_size() % 16 == 0
    return x_MK.dtype != torch.float32 and whole_rows and (copied or x_MK.data_ptr() % 16 == 0)


def forced_grouped(described: bool) -> Launch | None:
    """The launch that a checker forces on every call that it can serve."""
    launch = forced_launch(Launch, described=described)
    return launch if launch in GROUPED else None
