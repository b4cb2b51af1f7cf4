"""LayerNorm, said plainly: the definition that every backend is held to.

Order: a row's elements go to 256 lanes (element h to lane h mod 256), one addition a step from +0; the lanes are folded
by halves (128, 64, ..., 1), and the sum is divided by the width. Then the squares of what is left after the mean is
subtracted, by fused multiply-adds in the same order. The gradients of weight and bias are chains over rows.
Rounding: float32 after every step written below, once to the dtype at the end.
In float64 the same formulas are plain torch, exact enough to judge the others against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import evaluate
from samebits.numerics.fma import fma32
from samebits.ops.rmsnorm.reference import lanes_sum

# Infinities, and what comes of them, are data like any other.
_quietly = np.errstate(invalid="ignore", over="ignore", divide="ignore")


@_quietly
def forward(x_MH: Tensor, weight_H: Tensor | None, bias_H: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, rstd)."""
    if x_MH.dtype == torch.float64:
        mean64_M, rstd64_M = statistics64(x_MH, eps)
        return layernorm64(x_MH, weight_H, bias_H, eps), mean64_M, rstd64_M
    x = _float32(x_MH)
    mean_M1 = row_mean(x, np.ones_like(x))
    left_MH = x - mean_M1
    rstd_M1 = evaluate("rsqrt", row_mean(left_MH, left_MH) + np.float32(eps))
    y_MH = left_MH * rstd_M1
    if weight_H is not None and bias_H is not None:
        y_MH = fma32(y_MH, _rows(weight_H, x), _rows(bias_H, x))
    elif weight_H is not None:
        y_MH = y_MH * _float32(weight_H)
    elif bias_H is not None:
        y_MH = y_MH + _float32(bias_H)
    statistics = (torch.from_numpy(each[:, 0].copy()).to(x_MH.device) for each in (mean_M1, rstd_M1))
    mean_M, rstd_M = statistics
    return _like(y_MH, x_MH), mean_M, rstd_M


@_quietly
def backward_input(dy_MH: Tensor, x_MH: Tensor, weight_H: Tensor | None, mean_M: Tensor, rstd_M: Tensor) -> Tensor:
    """rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * weight."""
    if dy_MH.dtype == torch.float64:
        g64 = dy_MH if weight_H is None else dy_MH * weight_H
        xhat64 = (x_MH - mean_M[:, None]) * rstd_M[:, None]
        centred64 = g64 - g64.mean(-1, keepdim=True)
        return rstd_M[:, None] * (centred64 - xhat64 * (g64 * xhat64).mean(-1, keepdim=True))
    rstd = _column(rstd_M)
    g_MH = _float32(dy_MH) if weight_H is None else _float32(dy_MH) * _float32(weight_H)
    xhat_MH = (_float32(x_MH) - _column(mean_M)) * rstd
    centre_M1, slope_M1 = row_mean(g_MH, np.ones_like(g_MH)), row_mean(g_MH, xhat_MH)
    dx_MH = rstd * fma32(xhat_MH, np.broadcast_to(-slope_M1, g_MH.shape), g_MH - centre_M1)
    return _like(dx_MH, x_MH)


@_quietly
def backward_weight(dy_MH: Tensor, x_MH: Tensor, mean_M: Tensor, rstd_M: Tensor, accumulator_H: Tensor) -> None:
    """The chain over rows of dy * xhat, resumed from the accumulator, in place."""
    if dy_MH.dtype == torch.float64:
        accumulator_H += (dy_MH * (x_MH - mean_M[:, None]) * rstd_M[:, None]).sum(0)
        return
    _chain(_float32(dy_MH) * ((_float32(x_MH) - _column(mean_M)) * _column(rstd_M)), accumulator_H)


@_quietly
def backward_bias(dy_MH: Tensor, accumulator_H: Tensor) -> None:
    """The chain over rows of dy, resumed from the accumulator, in place."""
    if dy_MH.dtype == torch.float64:
        accumulator_H += dy_MH.sum(0)
        return
    _chain(_float32(dy_MH), accumulator_H)


def row_mean(a_MH: np.ndarray, b_MH: np.ndarray) -> np.ndarray:
    """sum_h a*b of every row in the order above, divided by the width. Times one a fused step is an addition."""
    return (lanes_sum(a_MH, b_MH) / np.float32(a_MH.shape[1]))[:, None]


def layernorm64(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """y[m,h] = (x[m,h] - mean[m]) rstd[m] weight[h] + bias[h], in float64."""
    mean, rstd = statistics64(x, eps)
    y = (x.double() - mean[..., None]) * rstd[..., None]
    y = y if weight is None else y * weight.double()
    return y if bias is None else y + bias.double()


def statistics64(x: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """mean[m] = mean_h x[m,h] and rstd[m] = 1 / sqrt(mean_h (x[m,h] - mean[m])^2 + eps), in float64."""
    mean = mean64(x)
    return mean, ((x.double() - mean[..., None]).square().mean(-1) + eps).rsqrt()


def mean64(x: Tensor) -> Tensor:
    """mean[m] = mean_h x[m,h], in float64."""
    return x.double().mean(-1)


def _chain(terms_MH: np.ndarray, accumulator_H: Tensor) -> None:
    sum_H = accumulator_H.detach().cpu().numpy().copy()
    for term_H in terms_MH:
        sum_H = sum_H + term_H
    accumulator_H.copy_(torch.from_numpy(sum_H))


def _float32(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


def _column(statistic_M: Tensor) -> np.ndarray:
    return _float32(statistic_M)[:, None]


def _rows(vector_H: Tensor, like_MH: np.ndarray) -> np.ndarray:
    return np.broadcast_to(_float32(vector_H), like_MH.shape)


def _like(values: np.ndarray, tensor: Tensor) -> Tensor:
    return torch.from_numpy(values).to(device=tensor.device, dtype=tensor.dtype)
