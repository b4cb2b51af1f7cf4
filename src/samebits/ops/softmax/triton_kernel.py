"""Softmax by Triton: a row's exponentials are added in 256 lanes that are folded by halves.

Knows nothing of autograd, validation or empty tensors; the public function does. Who has which rows, columns or lanes
decides speed alone: maxima are exact in any order, and no sum is left to a reduction whose order the compiler would
choose. The kernels are in triton_forward.py, triton_shared.py and triton_backward.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from samebits.ops._triton.device import multiprocessors, on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch, aligned
from samebits.ops._triton.sizes import cdiv
from samebits.ops.softmax.triton_backward import softmax_backward
from samebits.ops.softmax.triton_forward import softmax_forward
from samebits.ops.softmax.triton_shared import softmax_lanes, softmax_maxima, softmax_results

# M rows, H the axis that is normalised.

# Decides bits: lane l adds the terms l, l + 256, l + 512, ... Part of the order.
LANES: Final = 256

# All below decides speed only.

# The longest row a launch is for, and the launch; columns are those whose loads are under way together.
LAUNCHES: Final = (
    (1024, RowLaunch(rows=1, columns=256, warps=4)),
    (8192, RowLaunch(rows=1, columns=1024, warps=4)),
    (2**31, RowLaunch(rows=1, columns=4096, warps=4)),
)
PARTS: Final = 16
"""Programs that share a row's maximum, and its results."""
SHARED_FROM: Final = 16384
"""Columns of a row from which several programs may share it: three launches take some microseconds more than one."""
MANY_COLUMNS: Final = 2048
"""With a forced launch of so many columns shorter rows are shared as well: what checks rows of few columns meets it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedLaunch:
    """Rows that several programs share. Decides speed, never bits."""

    lanes: int = 64
    """Of 256, those that a program adds; 16 are the 32 bytes that are read at least."""
    steps: int = 64
    """Steps of the lanes' chains whose terms are under way together: at least 16, or the product is refused."""
    adding: int = 2
    """Warps of a program that adds lanes: with as many threads as lanes nothing is added twice."""
    block: int = 2048
    warps: int = 4
    """Warps of the other programs."""


ALONE: Final = SharedLaunch(lanes=16, adding=4)
"""For so few rows that the device is not full: threads that add the same lane bring more exponentials under way."""
TOGETHER: Final = SharedLaunch()


def row_launch(width: int) -> RowLaunch:
    """The forced launch, or the one for rows of this length."""
    return forced_launch(RowLaunch) or next(launch for longest, launch in LAUNCHES if width <= longest)


def chosen_launch(rows: int, width: int, device: torch.device) -> RowLaunch | SharedLaunch:
    """Of the forward kernels: the forced launch, or the one for so many rows of this length."""
    shared, forced = forced_launch(SharedLaunch), forced_launch(RowLaunch)
    if shared is not None:
        return shared
    long = width > SHARED_FROM if forced is None else forced.columns >= MANY_COLUMNS
    # Rows of one program fill the device where there are two a multiprocessor.
    if not long or rows >= 2 * multiprocessors(device):
        return row_launch(width)
    # Sixteen programs a row: up to two a multiprocessor.
    return ALONE if 8 * rows <= multiprocessors(device) else TOGETHER


def forward(
    x_MH: Tensor, dtype: torch.dtype, logarithm: bool, *, launch: RowLaunch | SharedLaunch | None = None
) -> Tensor:
    """Softmax of every row, or its logarithm, in `dtype`."""
    (m, width), x = x_MH.shape, x_MH.contiguous()
    y = torch.empty_like(x, dtype=dtype)
    launch = launch or chosen_launch(m, width, x.device)
    with on_device(x):
        if isinstance(launch, SharedLaunch):
            _forward_shared(x, y, logarithm, launch)
        else:
            run(
                softmax_forward,
                cdiv(m, launch.rows),
                (x, y, m, width),
                warps=launch.warps,
                stages=launch.stages,
                LOGARITHM=logarithm,
                ROWS=launch.rows,
                STEPS=max(1, launch.columns // LANES),
                ALIGNED=aligned(x, y),
            )
    return y


def _forward_shared(x: Tensor, y: Tensor, logarithm: bool, launch: SharedLaunch) -> None:
    m, width = x.shape
    maxima = torch.empty(m, PARTS, dtype=torch.float32, device=x.device)
    lanes = torch.empty(m, LANES, dtype=torch.float32, device=x.device)
    blocks, wide = cdiv(cdiv(width, launch.block), PARTS), aligned(x, y)
    parts = {"warps": launch.warps, "stages": 2, "PARTS": PARTS, "BLOCK": launch.block, "ALIGNED": wide}
    run(softmax_maxima, m * PARTS, (x, maxima, width, blocks), **parts)
    run(
        softmax_lanes,
        m * (LANES // launch.lanes),
        (x, maxima, lanes, m, width),
        warps=launch.adding,
        stages=2,
        PARTS=PARTS,
        STEPS=launch.steps,
        LANES=launch.lanes,
        ALIGNED=wide,
    )
    run(softmax_results, m * PARTS, (x, y, maxima, lanes, width, blocks), LOGARITHM=logarithm, **parts)


def backward(
    dy_MH: Tensor, y_MH: Tensor, dtype: torch.dtype, logarithm: bool, *, launch: RowLaunch | None = None
) -> Tensor:
    """The gradient of x in `dtype`, from the result as it was stored."""
    (m, width), dy, y = y_MH.shape, dy_MH.contiguous(), y_MH.contiguous()
    launch, dx = launch or row_launch(width), torch.empty_like(y, dtype=dtype)
    with on_device(dy):
        run(
            softmax_backward,
            cdiv(m, launch.rows),
            (dy, y, dx, m, width),
            warps=launch.warps,
            stages=launch.stages,
            LOGARITHM=logarithm,
            ROWS=launch.rows,
            STEPS=max(1, launch.columns // LANES),
            ALIGNED=aligned(dy, y, dx),
        )
    return dx
