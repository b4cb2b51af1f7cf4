"""Launches of the chains over rows by Gluon for Hopper: which tensors they take, for which sizes they pay, descriptors.

Knows no operator and decides speed alone: columns.py chooses between this and the kernel by Triton, whose bits are the
same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.ops._triton.device import missing, multiprocessors, on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.hopper_columns_kernel import specialised_column_chains
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import aligned
from samebits.ops._triton.sizes import cdiv

FEWEST_ROWS: Final = 33
"""From which on this kernel is launched. Of fewer the chain is no longer than a load from memory takes, and the launch
by Triton, which has no descriptors, is the shorter one for the host. Not more: the contracts' rows are 33 and 65, and
each promise is to be tried with the kernel that is in use."""
FEW_ROWS: Final = 256
"""Up to which blocks are small: what a block has beside the last row is added, too."""
BLOCK_BYTES: Final = 512
"""Of a column of a block of many rows."""
COLUMNS: Final = (8, 16, 32)
"""Of a program: the fewest with which all programs are on multiprocessors at once, for then each has more of its time.
The tensor memory accelerator copies 16 bytes of a row at least; of 8 columns, half a sector, all are read twice. More
than a warp has threads, or programs that take turns, were not tried: there the kernel by Triton has a multiprocessor
work on several chains at once."""
SHARED_BYTES: Final = 230_000
"""Of a multiprocessor's shared memory that a program may fill, barriers left out."""
_ELEMENTS: Final = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainLaunch:
    """Decides speed, never bits."""

    rows: int = 256
    """Of a block, which the tensor memory accelerator copies at once: 256 at most."""
    columns: int = 16
    """Of a program."""
    stages: int = 3
    """Blocks of operands on their way, or as many as there is room for: one is added in a thousand cycles."""
    slots: int = 2
    """Blocks of terms."""
    warps: int = 4
    """That make terms."""


def takes(dy_MH: Tensor, x_MH: Tensor | None, mean_M: Tensor | None, rstd_M: Tensor | None) -> bool:
    """Whether this is a GPU for the kernel, whose tensor memory accelerator reads all of them as they are."""
    return (
        dy_MH.is_cuda
        and missing(dy_MH.device) is None
        and dy_MH.dtype in _ELEMENTS
        and (x_MH is None or x_MH.dtype == dy_MH.dtype)
        and dy_MH.numel() > 0
        and aligned(dy_MH, x_MH)
        and all(each is None or each.data_ptr() % 16 == 0 for each in (mean_M, rstd_M))
    )


def launch_for(dy_MH: Tensor, x_MH: Tensor | None, mean_M: Tensor | None, rstd_M: Tensor | None) -> ChainLaunch | None:
    """The forced launch, or the one for these sizes; None where the kernel by Triton is to be launched."""
    if not takes(dy_MH, x_MH, mean_M, rstd_M):
        return None
    sizes = (*dy_MH.shape, dy_MH.itemsize, multiprocessors(dy_MH.device))
    return forced_launch(ChainLaunch) or chosen_launch(*sizes)


def chosen_launch(rows: int, width: int, bytes_each: int, at_once: int) -> ChainLaunch | None:
    """The launch for elements of so many bytes and programs at once; None where that by Triton is the cheaper one."""
    columns = next((each for each in COLUMNS if cdiv(width, each) <= at_once), None)
    if rows < FEWEST_ROWS or columns is None:
        return None
    block = 64 if rows <= FEW_ROWS else BLOCK_BYTES // bytes_each
    stages, slots = (2, 3) if columns == max(COLUMNS) else (3, 2)
    return ChainLaunch(rows=block, columns=columns, stages=stages, slots=slots)


def add_rows(
    dy_MH: Tensor,
    x_MH: Tensor | None,
    mean_M: Tensor | None,
    rstd_M: Tensor | None,
    accumulator_H: Tensor,
    launch: ChainLaunch,
) -> None:
    """The chains over rows, resumed from the accumulator (float32, contiguous), in place."""
    m, width = dy_MH.shape
    blocks = [None if each is None else _block(each, launch) for each in (dy_MH, x_MH)]
    lines = [None if each is None else _line(each, launch) for each in (mean_M, rstd_M)]
    with on_device(dy_MH):
        run(
            specialised_column_chains,
            cdiv(width, launch.columns),
            (*blocks, *lines, accumulator_H, m, width),
            warps=launch.warps,
            stages=1,
            # A compiled kernel is found again by dtypes of tensors and by constants: not by what is described.
            ELEMENT=_ELEMENTS[dy_MH.dtype],
            ROWS=launch.rows,
            COLUMNS=launch.columns,
            STAGES=_stages(launch, dy_MH.itemsize * (2 - blocks.count(None)), 2 - lines.count(None)),
            SLOTS=launch.slots,
            WARPS=launch.warps,
        )


def _stages(launch: ChainLaunch, bytes_each: int, lines: int) -> int:
    """As many as there is room for, of blocks with so many bytes an element and so many numbers a row."""
    room = SHARED_BYTES - launch.slots * launch.rows * launch.columns * 4
    found = min(launch.stages, room // (launch.rows * (launch.columns * bytes_each + lines * 4)))
    if found < 1:
        raise ValueError(f"{launch} has no room for one block of operands; allowed: {SHARED_BYTES} bytes in all")
    return found


def _block(x_MH: Tensor, launch: ChainLaunch) -> TensorDescriptor:
    sizes = [launch.rows, launch.columns]
    return TensorDescriptor(x_MH, list(x_MH.shape), [x_MH.shape[1], 1], sizes, _layout(*sizes, x_MH.dtype))


def _line(x_M: Tensor, launch: ChainLaunch) -> TensorDescriptor:
    """One number a row, as a matrix of one row, whose stride is never taken but has to be one of 16 bytes."""
    m = x_M.shape[0]
    return TensorDescriptor(x_M, [1, m], [cdiv(m, 4) * 4, 1], [1, launch.rows], _plain())


@cache
def _layout(rows: int, columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([rows, columns], _ELEMENTS[dtype])


@cache
def _plain() -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
