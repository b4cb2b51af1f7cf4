"""GELU, said plainly: the definition that every backend is held to.

No sum, hence no order but that of the operations written below. Rounding: float32 after every one of them, once to the
dtype at the end. In float64 the same formulas are plain torch, exact enough to judge the others against."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import evaluate
from samebits.numerics.fma import fma32
from samebits.ops.float32 import float32_of, like, quietly

# Decide bits: each is rounded once to float32.
ROOT_HALF: Final = 0.7071067811865476
"""1 / sqrt(2)"""
DENSITY: Final = 0.3989422804014327
"""1 / sqrt(2 pi)"""
ROOT_TWO_OVER_PI: Final = 0.7978845608028654
"""sqrt(2 / pi)"""
CUBIC: Final = 0.044715
CUBIC_SLOPE: Final = 0.134145
"""3 * CUBIC"""

_half, _one = np.asarray(0.5, np.float32), np.asarray(1.0, np.float32)


@quietly
def forward(x: Tensor, by_tanh: bool) -> Tensor:
    """y = (x * 0.5) * (1 + e), e the error function or tanh."""
    if x.dtype == torch.float64:
        return gelu_tanh64(x) if by_tanh else gelu64(x)
    values = float32_of(x)
    e = _tanh(values) if by_tanh else _erf(values)
    return like((values * _half) * (_one + e), x)


@quietly
def backward(dy: Tensor, x: Tensor, by_tanh: bool) -> Tensor:
    """dx = dy * (the slope of x/2 (1 + e)); the slope's last addition is fused."""
    if x.dtype == torch.float64:
        return dy * (slope_tanh64(x) if by_tanh else slope64(x))
    values = float32_of(x)
    if by_tanh:
        t = _tanh(values)
        inner = np.float32(ROOT_TWO_OVER_PI) * fma32(np.asarray(CUBIC_SLOPE, np.float32), values * values, _one)
        slope = fma32((values * _half) * fma32(-t, t, _one), inner, _half * (_one + t))
    else:
        pdf = evaluate("exp", np.asarray((values * -_half) * values)) * np.float32(DENSITY)
        slope = fma32(values, pdf, _half * (_one + _erf(values)))
    return like(float32_of(dy) * slope, x)


def gelu64(x: Tensor) -> Tensor:
    """y = x/2 (1 + erf(x / sqrt 2)), in float64."""
    return 0.5 * x.double() * torch.erfc(-x.double() * math.sqrt(0.5))


def slope64(x: Tensor) -> Tensor:
    """dy/dx of gelu64."""
    x = x.double()
    density = torch.exp(-0.5 * x * x) * DENSITY
    return 0.5 * torch.erfc(-x * math.sqrt(0.5)) + x * density


def gelu_tanh64(x: Tensor) -> Tensor:
    """y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), in float64."""
    return 0.5 * x.double() * (1 + torch.tanh(inner64(x)))


def slope_tanh64(x: Tensor) -> Tensor:
    """dy/dx of gelu_tanh64."""
    x, z = x.double(), inner64(x)
    steepness = ROOT_TWO_OVER_PI * (1 + 3 * CUBIC * x * x)
    return 0.5 * (1 + torch.tanh(z)) + 0.5 * x * steepness / torch.cosh(z).square()


def inner64(x: Tensor) -> Tensor:
    """sqrt(2/pi) (x + 0.044715 x^3)."""
    x = x.double()
    return ROOT_TWO_OVER_PI * (x + CUBIC * x**3)


def _erf(x: np.ndarray) -> np.ndarray:
    return evaluate("erf", np.asarray(x * np.float32(ROOT_HALF)))


def _tanh(x: np.ndarray) -> np.ndarray:
    return evaluate("tanh", np.asarray(np.float32(ROOT_TWO_OVER_PI) * fma32(np.float32(CUBIC) * (x * x), x, x)))
