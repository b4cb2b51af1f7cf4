"""RMSNorm, said plainly: the definition that every backend is held to.

Order: a row's squares go to 256 lanes (element h to lane h mod 256), each lane one fused multiply-add a step from +0;
the lanes are folded by halves (128, 64, ..., 1). The weight's gradient is a chain over rows.
Rounding: float32 after every step written below, once to the dtype at the end.
In float64 the same formulas are plain torch, exact enough to judge the others against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import evaluate
from samebits.numerics.fma import fma32

# Decides bits: how many partial sums a row has. Part of the order `lanes-256`.
LANES = 256

# Infinities, and what comes of them, are data like any other.
_quietly = np.errstate(invalid="ignore", over="ignore")


def lanes_sum(a_MH: np.ndarray, b_MH: np.ndarray) -> np.ndarray:
    """sum_h a*b of every row, in the order above."""
    rows, width = a_MH.shape
    lanes_ML = np.zeros((rows, LANES), np.float32)
    for start in range(0, width, LANES):
        stop = min(start + LANES, width)
        here = slice(0, stop - start)
        lanes_ML[:, here] = fma32(a_MH[:, start:stop], b_MH[:, start:stop], lanes_ML[:, here])
    half = LANES // 2
    while half:
        lanes_ML = lanes_ML[:, :half] + lanes_ML[:, half : 2 * half]
        half //= 2
    return lanes_ML[:, 0]


@_quietly
def forward(x_MH: Tensor, weight_H: Tensor, eps: float, residual_MH: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(y, rstd, hidden): hidden is x, or round(x + residual)."""
    hidden_MH = x_MH if residual_MH is None else x_MH + residual_MH
    if x_MH.dtype == torch.float64:
        rstd64_M = (hidden_MH.square().mean(-1) + eps).rsqrt()
        return hidden_MH * rstd64_M[:, None] * weight_H, rstd64_M, hidden_MH
    h_MH, weight = _float32(hidden_MH), _float32(weight_H)
    mean_M = lanes_sum(h_MH, h_MH) * _one_over(h_MH.shape[1])
    rstd_M = evaluate("rsqrt", mean_M + np.float32(eps))
    y_MH = (h_MH * rstd_M[:, None]) * weight
    return _like(y_MH, x_MH), torch.from_numpy(rstd_M).to(x_MH.device), hidden_MH


@_quietly
def backward_input(
    dy_MH: Tensor, hidden_MH: Tensor, weight_H: Tensor, rstd_M: Tensor, dhidden_MH: Tensor | None
) -> Tensor:
    """The gradient of hidden, with what flows into hidden from elsewhere added before the rounding."""
    if dy_MH.dtype == torch.float64:
        g64, xhat64 = dy_MH * weight_H, hidden_MH * rstd_M[:, None]
        dx64 = rstd_M[:, None] * (g64 - xhat64 * (g64 * xhat64).mean(-1, keepdim=True))
        return dx64 if dhidden_MH is None else dx64 + dhidden_MH
    rstd = rstd_M.detach().cpu().numpy()[:, None]
    g_MH, xhat_MH = _float32(dy_MH) * _float32(weight_H), _float32(hidden_MH) * rstd
    mean_M1 = (lanes_sum(g_MH, xhat_MH) * _one_over(g_MH.shape[1]))[:, None]
    dx_MH = rstd * fma32(-xhat_MH, np.broadcast_to(mean_M1, g_MH.shape), g_MH)
    return _like(dx_MH if dhidden_MH is None else dx_MH + _float32(dhidden_MH), hidden_MH)


@_quietly
def backward_weight(dy_MH: Tensor, hidden_MH: Tensor, rstd_M: Tensor, accumulator_H: Tensor) -> None:
    """The chain over rows, resumed from the accumulator, in place."""
    if dy_MH.dtype == torch.float64:
        accumulator_H += (dy_MH * hidden_MH * rstd_M[:, None]).sum(0)
        return
    terms_MH = _float32(dy_MH) * (_float32(hidden_MH) * rstd_M.detach().cpu().numpy()[:, None])
    sum_H = accumulator_H.detach().cpu().numpy().copy()
    for term_H in terms_MH:
        sum_H = sum_H + term_H
    accumulator_H.copy_(torch.from_numpy(sum_H))


def rmsnorm64(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """y[m,h] = x[m,h] weight[h] / sqrt(mean_h x[m,h]^2 + eps), in float64."""
    return x.double() * statistic64(x, weight, eps)[..., None] * weight.double()


def statistic64(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """rstd[m] = 1 / sqrt(mean_h x[m,h]^2 + eps), in float64."""
    return (x.double().square().mean(-1) + eps).rsqrt()


def _float32(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


def _one_over(width: int) -> np.float32:
    return np.float32(1.0) / np.float32(width)


def _like(values: np.ndarray, tensor: Tensor) -> Tensor:
    return torch.from_numpy(values).to(device=tensor.device, dtype=tensor.dtype)
