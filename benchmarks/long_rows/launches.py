"""Launches of the kernels here: `forward` takes and gives what that of ops/softmax/triton_kernel.py does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from long_rows.kernels import row_lanes, row_maxima, row_results, whole_rows
from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import aligned
from samebits.ops._triton.sizes import cdiv

PARTS: Final = 16
"""Programs that share a row's maxima and results."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LongRowLaunch:
    """Decides speed, never bits."""

    shared: bool
    """Whether several programs share a row."""
    steps: int = 16
    """Steps of the lanes' chains whose terms are under way together."""
    lanes: int = 32
    """Of 256, those that a program adds, where a row is shared: 64 bytes of 16-bit numbers are two sectors."""
    block: int = 2048
    warps: int = 4


def chosen_launch(rows: int, multiprocessors: int) -> LongRowLaunch:
    """A row is shared where there are fewer than two a multiprocessor."""
    return LongRowLaunch(shared=rows < 2 * multiprocessors)


def forward(x_MH: Tensor, dtype: torch.dtype, logarithm: bool, launch: LongRowLaunch) -> Tensor:
    """Softmax of every row, or its logarithm, in `dtype`."""
    (m, width), x = x_MH.shape, x_MH.contiguous()
    y = torch.empty_like(x, dtype=dtype)
    with on_device(x):
        return (
            _shared(x, y, m, width, logarithm, launch) if launch.shared else _whole(x, y, m, width, logarithm, launch)
        )


def _whole(x: Tensor, y: Tensor, m: int, width: int, logarithm: bool, launch: LongRowLaunch) -> Tensor:
    run(
        whole_rows,
        m,
        (x, y, width),
        warps=launch.warps,
        stages=2,
        LOGARITHM=logarithm,
        STEPS=launch.steps,
        BLOCK=launch.block,
        ALIGNED=aligned(x, y),
    )
    return y


def _shared(x: Tensor, y: Tensor, m: int, width: int, logarithm: bool, launch: LongRowLaunch) -> Tensor:
    maxima = torch.empty(m, PARTS, dtype=torch.float32, device=x.device)
    lanes = torch.empty(m, 256, dtype=torch.float32, device=x.device)
    part = cdiv(cdiv(width, PARTS), launch.block) * launch.block
    common = {"warps": launch.warps, "stages": 2, "PARTS": PARTS, "ALIGNED": aligned(x, y)}
    run(row_maxima, m * PARTS, (x, maxima, width, part), BLOCK=launch.block, **common)
    sharing = 256 // launch.lanes
    run(row_lanes, m * sharing, (x, maxima, lanes, width), STEPS=launch.steps, LANES=launch.lanes, **common)
    run(row_results, m * PARTS, (x, y, maxima, lanes, width, part), LOGARITHM=logarithm, BLOCK=launch.block, **common)
    return y
