"""Launches of the kernel here: `add_rows` takes and does what that of ops/_triton/columns.py does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from column_chains.kernels import specialised_column_chains
from samebits.ops._triton import columns as in_use
from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import aligned
from samebits.ops._triton.sizes import cdiv

MULTIPROCESSORS: Final = 132
"""Of an H200."""
SHARED_BYTES: Final = 230_000
"""Of a multiprocessor's shared memory that a program may fill, barriers left out."""
_ELEMENTS: Final = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainLaunch:
    """Decides speed, never bits."""

    rows: int = 256
    """Of a block, which the tensor memory accelerator copies at once: 256 at most."""
    columns: int = 16
    """Of a program. Fewer leave their multiprocessor more time; of 8, each half a sector, all are read twice."""
    stages: int = 3
    """Blocks of operands on their way, or as many as there is room for: one is added in a thousand cycles."""
    slots: int = 2
    """Blocks of terms."""
    warps: int = 4
    """That make terms."""


def chosen_launch(width: int) -> ChainLaunch:
    """As few columns a program as keep all programs on multiprocessors at once."""
    few = next((columns for columns in (8, 16) if cdiv(width, columns) <= MULTIPROCESSORS), None)
    return ChainLaunch(columns=few) if few else ChainLaunch(columns=32, stages=2, slots=3)


def takes(dy_MH: Tensor, x_MH: Tensor | None, mean_M: Tensor | None, rstd_M: Tensor | None) -> bool:
    """Whether the tensor memory accelerator reads all of them as they are."""
    starts = all(each is None or each.data_ptr() % 16 == 0 for each in (mean_M, rstd_M))
    same = x_MH is None or x_MH.dtype == dy_MH.dtype
    return aligned(dy_MH, x_MH) and same and starts and dy_MH.numel() > 0


def add_rows(
    dy_MH: Tensor,
    x_MH: Tensor | None,
    mean_M: Tensor | None,
    rstd_M: Tensor | None,
    accumulator_H: Tensor,
    launch: ChainLaunch | None = None,
) -> None:
    """The chains over rows, resumed from the accumulator (float32, contiguous), in place."""
    (m, width), launch = dy_MH.shape, launch or chosen_launch(dy_MH.shape[1])
    if not takes(dy_MH, x_MH, mean_M, rstd_M):
        in_use.add_rows(dy_MH, x_MH, mean_M, rstd_M, accumulator_H)
        return
    blocks = [None if each is None else _block(each, launch) for each in (dy_MH, x_MH)]
    lines = [None if each is None else _line(each, launch) for each in (mean_M, rstd_M)]
    with on_device(dy_MH):
        run(
            specialised_column_chains,
            cdiv(width, launch.columns),
            (*blocks, *lines, accumulator_H, m, width),
            warps=launch.warps,
            stages=1,
            ROWS=launch.rows,
            COLUMNS=launch.columns,
            # A compiled kernel is found again by dtypes of tensors and by constants: not by what is described.
            ELEMENT=_ELEMENTS[dy_MH.dtype],
            STAGES=_stages(launch, [each for each in (*blocks, *lines) if each is not None]),
            SLOTS=launch.slots,
            WARPS=launch.warps,
        )


def _stages(launch: ChainLaunch, described: list[TensorDescriptor]) -> int:
    room = SHARED_BYTES - launch.slots * launch.rows * launch.columns * 4
    stage: int = sum(math.prod(each.block_shape) * each.base.itemsize for each in described)
    return min(launch.stages, room // stage)


def _block(x_MH: Tensor, launch: ChainLaunch) -> TensorDescriptor:
    sizes = [launch.rows, launch.columns]
    return TensorDescriptor(x_MH, list(x_MH.shape), [x_MH.shape[1], 1], sizes, _layout(*sizes, x_MH.dtype))


def _line(x_M: Tensor, launch: ChainLaunch) -> TensorDescriptor:
    """One number a row, as a matrix of one row, whose stride is never taken but has to be one of 16 bytes."""
    stride = cdiv(len(x_M), 4) * 4
    return TensorDescriptor(x_M[None], [1, len(x_M)], [stride, 1], [1, launch.rows], _plain())


@cache
def _layout(rows: int, columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([rows, columns], _ELEMENTS[dtype])


@cache
def _plain() -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
