"""Launches of the product of a few rows: how a program's shared memory is used, descriptors, the grid.

Decides speed alone: every form gives the bits of `matmul_described`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from decode_step import launching
from decode_step.product_kernel import product_of_few_rows
from samebits.ops._triton.device import multiprocessors
from samebits.ops._triton.sizes import cdiv, next_power_of_2
from samebits.ops.attention.triton_hopper import layout_of

MOST_ROWS: Final = 64
"""More of them are no matter of reading weights alone."""
WHOLE: Final = 230_000
"""Bytes of a multiprocessor's shared memory that programs may fill, barriers left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Decides speed, never bits."""

    features: int = 64
    """Rows of the weight in a tile."""
    depth: int = 256
    """Of a step along K; half of it for gate and up, which are loaded together."""
    stages: int = 12
    """Steps on their way, or as many as fit."""
    programs: int = 1
    """Of a multiprocessor; they go from tile to tile."""
    ahead: int = 0
    """Megabytes of weights that all programs together ask into the second cache before the wait."""
    early: bool = True
    """The next kernel may begin with this one; else when all weights are on their way."""
    registers: int = 80
    """Of a thread when the program begins: few enough to leave room for the small kernels before and after."""

    def __str__(self) -> str:
        marks = f"{' early' if self.early else ' late'}{f' ahead {self.ahead} MB' if self.ahead else ''}"
        return f"{self.features}x{self.depth} s{self.stages} p{self.programs}{marks}"


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel can: 16 bits, few rows, matrices that the tensor memory accelerator reads as they are."""
    plain = all(each.is_contiguous() and each.data_ptr() % 16 == 0 for each in (x, weight))
    sixteen = x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float16)
    return plain and sixteen and x.shape[0] <= MOST_ROWS and x.shape[1] % 8 == 0


def product(
    x: Tensor,
    weight: Tensor,
    form: Form,
    *,
    programmatic: bool,
    gated: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """round(x @ weight.T), or, of gate and up end to end, round((gate * sigmoid(gate)) * up) of both products."""
    (rows, k), parts = x.shape, 2 if gated else 1
    features, columns = weight.shape[0] // parts, max(16, next_power_of_2(rows))
    depth = min(form.depth // parts, max(64, next_power_of_2(k)))
    stages = min(form.stages, WHOLE // form.programs // (2 * depth * (parts * form.features + columns)))
    tiles = cdiv(features, form.features)
    programs = min(tiles, form.programs * multiprocessors(x.device))
    # Columns of a program's first tile, so many that they are a multiple of 16 bytes.
    ahead = form.ahead * 2**20 // (2 * parts * form.features * programs) // 8 * 8
    out = torch.empty(rows, features, dtype=out_dtype or x.dtype, device=x.device)
    launching.run(
        product_of_few_rows,
        programs,
        (
            *(described(weight, form.features, depth), described(x, columns, depth), weight, out),
            *(rows, features, k, ahead, tiles, cdiv(k, depth)),
        ),
        warps=4,
        programmatic=programmatic,
        maxnreg=form.registers,
        FEATURES=form.features,
        ROWS=columns,
        DEPTH=depth,
        STAGES=stages,
        PARTS=parts,
        AHEAD=form.ahead > 0,
        EARLY=form.early,
    )
    return out


def described(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), [x.shape[1], 1], [rows, columns], layout_of(rows, columns, x.dtype))
