"""Launches of the product of a few rows: how a program's shared memory is used, descriptors, the grid.

Decides speed alone: every launch gives the bits of `matmul_described`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.infer.hopper_step import launching
from samebits.infer.hopper_step.choices import ProductLaunch
from samebits.infer.hopper_step.product_kernel import FEATURES, product_of_few_rows
from samebits.ops._triton.device import multiprocessors
from samebits.ops._triton.sizes import cdiv, next_power_of_2
from samebits.ops.attention.triton_hopper import layout_of

MOST_ROWS: Final = 64
"""More of them are no matter of reading weights alone."""
LEAST_ROWS: Final = 8
"""The narrowest product of Hopper's matrix units."""
SHARED_BYTES: Final = 230_000
"""Of a multiprocessor's shared memory that a program may fill, barriers left out."""
REGISTERS: Final = 80
"""Of a thread when the program begins: few enough to leave registers to the small kernels before and after."""


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel can: 16 bits, few rows, matrices that the tensor memory accelerator reads as they are."""
    plain = all(each.is_contiguous() and each.data_ptr() % 16 == 0 for each in (x, weight))
    sixteen = x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float16)
    return plain and sixteen and x.shape[0] <= MOST_ROWS and x.shape[1] % 8 == 0


def product(
    x: Tensor, weight: Tensor, launch: ProductLaunch, *, gated: bool = False, out_dtype: torch.dtype | None = None
) -> Tensor:
    """round(x @ weight.T), or, of gate and up end to end, round((gate * sigmoid(gate)) * up) of both products."""
    (rows, k), parts, tile = x.shape, 2 if gated else 1, FEATURES.value
    features, columns = weight.shape[0] // parts, max(LEAST_ROWS, next_power_of_2(rows))
    depth = min(launch.depth // parts, max(64, next_power_of_2(k)))
    stages = min(launch.stages, SHARED_BYTES // (2 * depth * (parts * tile + columns)))
    tiles = cdiv(features, tile)
    out = torch.empty(rows, features, dtype=out_dtype or x.dtype, device=x.device)
    launching.run(
        product_of_few_rows,
        min(tiles, multiprocessors(x.device)),
        (
            *(described(weight, tile, depth), described(x, columns, depth), out),
            *(rows, features, tiles, cdiv(k, depth)),
        ),
        warps=4,
        maxnreg=REGISTERS,
        ROWS=columns,
        DEPTH=depth,
        STAGES=stages,
        PARTS=parts,
        OVERLAPPED=launch.overlapped,
    )
    return out


def described(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), [x.shape[1], 1], [rows, columns], layout_of(rows, columns, x.dtype))
