"""Launches of the kernel here: `update` takes and does what that of ops/adamw/triton_kernel.py does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from adamw_many.kernels import adamw_many
from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch
from samebits.ops._triton.sizes import cdiv
from samebits.ops.adamw.reference import Numbers

LAUNCH: Final = RowLaunch(columns=1024, warps=4)
KEPT: Final = 8
"""Tables that are remembered: a trainer's weights, gradients and moments stay where they are."""
_NUMBERS: Final = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@dataclass(frozen=True, slots=True)
class Kind:
    """What tensors of one launch have in common."""

    param: torch.dtype
    grad: torch.dtype
    aligned: bool


Row = tuple[int, int, int, int, int, int]
"""Addresses of a parameter, its gradient, both moments and its master, or 0; and the number of its elements."""


def update(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    masters: Sequence[Tensor],
    numbers: Numbers,
    *,
    launch: RowLaunch = LAUNCH,
) -> None:
    """One step of every tensor, in place, a launch for all that are of one kind."""
    rows: dict[Kind, list[Row]] = defaultdict(list)
    for index, (param, grad) in enumerate(zip(params, grads, strict=True)):
        states = [exp_avgs[index], exp_avg_sqs[index], *masters[index : index + 1]]
        first, second, third, fourth, *fifth = (each.data_ptr() for each in (param, grad, *states))
        size, master = param.numel(), fifth[0] if fifth else 0
        aligned = size % 8 == 0 and (first | second | third | fourth | master) % 16 == 0
        rows[Kind(param.dtype, grad.dtype, aligned)].append((first, second, third, fourth, master, size))
    with on_device(params[0]):
        for kind, some in rows.items():
            table, owners = tables(tuple(some), launch.columns, params[0].device)
            run(
                adamw_many,
                len(owners),
                (table, owners, *numbers.values),
                warps=launch.warps,
                stages=launch.stages,
                PARAM=_NUMBERS[kind.param],
                GRAD=_NUMBERS[kind.grad],
                MASTER=bool(masters),
                BLOCK=launch.columns,
                ALIGNED=kind.aligned,
            )


@lru_cache(maxsize=KEPT)
def tables(rows: tuple[Row, ...], block: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A row of each tensor with its first program, and the row of each program. They say where memory is, not what."""
    blocks = torch.tensor([cdiv(row[-1], block) for row in rows])
    first = blocks.cumsum(0) - blocks
    table = torch.cat([torch.tensor(rows), first[:, None]], 1)
    owners = torch.repeat_interleave(torch.arange(len(rows), dtype=torch.int32), blocks)
    return table.to(device), owners.to(device)
