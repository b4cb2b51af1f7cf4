"""The product with a quantised weight: `linear` on the numbers that its codes stand for, made a few rows at a time.

Order: the chain of `matmul`, k ascending, over the exact float32 numbers of `Grouped.numbers`; so its bits are those of
`linear` on the dequantised weight, and every promise of `linear` holds. Only one tile of rows is ever in float32."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from samebits import ops
from samebits.post.grouped import Grouped

# Rows of the weight that are numbers at a time; decides speed and memory, and no bit: each output has its own chain.
TILE: Final = 256


def quantized_linear(x: Tensor, weight: Grouped, *, tile: int = TILE) -> Tensor:
    """x (..., K) float32 times the weight (N, K) transposed."""
    if x.dtype != torch.float32:
        raise ValueError(f"quantized_linear: x has dtype {str(x.dtype).removeprefix('torch.')}; allowed: float32")
    count = len(weight.codes)
    tiles = [ops.linear(x, weight.rows(slice(start, start + tile)).numbers()) for start in range(0, count, tile)]
    return torch.cat(tiles, dim=-1)
