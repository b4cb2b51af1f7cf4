"""Softmax and its logarithm, said plainly: the definition that every backend is held to.

Order: a row's exponentials go to 256 lanes (element h to lane h mod 256), each lane one addition a step from +0; the
lanes are folded by halves (128, 64, ..., 1). The gradient's sum has the same order.
Rounding: float32 after every step written below, once to the dtype at the end. The gradient starts from the result as
it was stored. In float64 the same formulas are plain torch, exact enough to judge the others against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import evaluate
from samebits.numerics.fma import fma32

# Decides bits: how many partial sums a row has. Part of the order `lanes-256`.
LANES = 256

# Infinities, and what comes of them, are data like any other.
_quietly = np.errstate(invalid="ignore", over="ignore", divide="ignore")


def lanes_sum(width: int, step: Callable[[np.ndarray, slice], np.ndarray], rows: int) -> np.ndarray:
    """The sum of every row in the order above; step(lanes, columns) adds a block's terms to the lanes they meet."""
    lanes_ML = np.zeros((rows, LANES), np.float32)
    for start in range(0, width, LANES):
        stop = min(start + LANES, width)
        lanes_ML[:, : stop - start] = step(lanes_ML[:, : stop - start], slice(start, stop))
    half = LANES // 2
    while half:
        lanes_ML = lanes_ML[:, :half] + lanes_ML[:, half : 2 * half]
        half //= 2
    return lanes_ML


@_quietly
def forward(x_MH: Tensor, dtype: torch.dtype, logarithm: bool) -> Tensor:
    """y = e * (1 / S), or with `logarithm` y = (x - m) - log(S); e = exp(x - m), S their sum."""
    if x_MH.dtype == torch.float64:
        return (log_softmax64(x_MH) if logarithm else softmax64(x_MH)).to(dtype)
    x = x_MH.detach().float().cpu().numpy()
    rows, width = x.shape
    # NaN shows in the sum. Without a finite maximum nothing is subtracted; nor is the sign of a zero.
    m_M1 = np.fmax.reduce(x, axis=1, keepdims=True, initial=np.float32(-np.inf))
    d_MH = x - np.where((m_M1 == -np.inf) | (m_M1 == 0), np.float32(0), m_M1)
    e_MH = evaluate("exp", d_MH)
    sum_M1 = lanes_sum(width, lambda lanes, columns: lanes + e_MH[:, columns], rows)
    nothing_M1 = sum_M1 == 0
    if logarithm:
        y_MH = d_MH - np.where(nothing_M1, np.float32(0), evaluate("log", sum_M1))
    else:
        y_MH = e_MH * np.where(nothing_M1, np.float32(0), np.float32(1) / sum_M1)
    return torch.from_numpy(y_MH).to(device=x_MH.device, dtype=dtype)


@_quietly
def backward(dy_MH: Tensor, y_MH: Tensor, dtype: torch.dtype, logarithm: bool) -> Tensor:
    """dx = y * (dy - sum(dy * y)), or with `logarithm` dx = dy - exp(y) * sum(dy)."""
    if dtype == torch.float64:
        dy64, y64 = dy_MH.double(), y_MH.double()
        if logarithm:
            return dy64 - y64.exp() * dy64.sum(-1, keepdim=True)
        return y64 * (dy64 - (dy64 * y64).sum(-1, keepdim=True))
    dy, y = (each.detach().float().cpu().numpy() for each in (dy_MH, y_MH))
    rows, width = y.shape
    if logarithm:
        c_M1 = lanes_sum(width, lambda lanes, columns: lanes + dy[:, columns], rows)
        dx_MH = fma32(-evaluate("exp", y), np.broadcast_to(c_M1, y.shape), dy)
    else:
        c_M1 = lanes_sum(width, lambda lanes, columns: fma32(dy[:, columns], y[:, columns], lanes), rows)
        dx_MH = y * (dy - c_M1)
    return torch.from_numpy(dx_MH).to(device=y_MH.device, dtype=dtype)


def softmax64(x: Tensor) -> Tensor:
    """y[m,h] = exp(x[m,h] - max_h x[m,h]) / sum_h exp(x[m,h] - max_h x[m,h]), in float64."""
    e = _shifted64(x).exp()
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, 1.0, total)


def log_softmax64(x: Tensor) -> Tensor:
    """y[m,h] = x[m,h] - max_h x[m,h] - log(sum_h exp(x[m,h] - max_h x[m,h])), in float64."""
    d = _shifted64(x)
    total = d.exp().sum(-1, keepdim=True)
    return d - torch.where(total == 0, 1.0, total).log()


def _shifted64(x: Tensor) -> Tensor:
    m = x.double().amax(-1, keepdim=True)
    return x.double() - torch.where(m == -torch.inf, 0.0, m)
