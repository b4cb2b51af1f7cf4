"""The norm of a list of gradients, and clipping by it, said plainly: the definition that every backend is held to.

Every tensor is flattened row by row and cut into pieces of 65536 elements. The squares of a piece go to 256 lanes
(element i to lane i mod 256), each lane one fused multiply-add a step from +0; the lanes are folded by halves. The
pieces' sums, tensors in the order of the list, are added in the same way: 256 lanes, folded by halves. Then
  norm = sqrt(sum)        scale = max_norm / (norm + 1e-6), at most 1        g = round(g * scale)
float32 after every step. In float64 the same formulas are plain torch, exact enough to judge the others against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.fma import fma32

# Both decide bits: how many partial sums a piece has, and how many elements a piece.
LANES = 256
PIECE = 65536
# Keeps a norm of 0 from dividing by zero, as in torch.
SMALL = 1e-6

# Infinities, and what comes of them, are data like any other.
_quietly = np.errstate(all="ignore")


@_quietly
def square_sum(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of all squares."""
    device = tensors[0].device
    if tensors[0].dtype == torch.float64:
        return torch.stack([tensor.detach().square().sum() for tensor in tensors]).sum()
    flat = [tensor.detach().reshape(-1).float().cpu().numpy() for tensor in tensors]
    pieces = [values[start : start + PIECE] for values in flat for start in range(0, values.size, PIECE)]
    sums = np.array([_lanes_sum(piece, squared=True) for piece in pieces], np.float32)
    return torch.tensor(_lanes_sum(sums, squared=False), dtype=torch.float32, device=device)


@_quietly
def clip(grads: Sequence[Tensor], norm: Tensor, max_norm: float) -> None:
    """Every gradient times the scale, in place."""
    if grads[0].dtype == torch.float64:
        for grad in grads:
            grad.mul_((max_norm / (norm + SMALL)).clamp(max=1.0))
        return
    quotient = np.float32(max_norm) / (np.float32(norm.item()) + np.float32(SMALL))
    # A norm that is not a number stays visible in every gradient.
    scale = np.float32(1.0) if quotient >= 1 else quotient
    for grad in grads:
        grad.copy_(torch.from_numpy(np.asarray(grad.float().cpu().numpy() * scale)))


def _lanes_sum(values: np.ndarray, *, squared: bool) -> np.float32:
    """The sum of the values, or of their squares, in the order above."""
    lanes = np.zeros(LANES, np.float32)
    for start in range(0, values.size, LANES):
        part = values[start : start + LANES]
        sums = lanes[: part.size]
        lanes[: part.size] = fma32(part, part, sums) if squared else sums + part
    half = LANES // 2
    while half:
        lanes = lanes[:half] + lanes[half : 2 * half]
        half //= 2
    return np.float32(lanes[0])


def row_squares64(x: Tensor) -> Tensor:
    """sum_h x[m,h]^2 of every row, in float64."""
    return x.double().square().sum(-1)


def row_norms64(x: Tensor) -> Tensor:
    """sqrt(sum_h x[m,h]^2) of every row, in float64."""
    return row_squares64(x).sqrt()


def clipped_rows64(x: Tensor) -> Tensor:
    """Every row times min(1, 1 / (its norm + 1e-6)), in float64."""
    return x.double() * (1.0 / (row_norms64(x) + SMALL)).clamp(max=1.0)[:, None]
