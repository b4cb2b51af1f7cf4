"""Rotary position embedding, said plainly: the definition that every backend is held to.

No sum but that of two products, whose second is rounded and whose first is fused. Rounding: float32 after every step
written below, once to the dtype at the end. In float64 the same formulas are plain torch, exact enough to judge the
others against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import evaluate
from samebits.numerics.fma import fma32
from samebits.ops.rope.scaling import RopeScaling, attention_factor, frequencies

# Infinities, and what comes of them, are data like any other.
_quietly = np.errstate(invalid="ignore", over="ignore", under="ignore")


@_quietly
def rotate(
    x_MHD: Tensor, positions_M: Tensor, frequencies_P: Tensor, factor: float, interleaved: bool, opposite: bool
) -> Tensor:
    """(a, b) -> (a c - b s, b c + a s) for every pair; c and s: cosine and sine of position * frequency, times factor.

    `opposite`: by the opposite angle, which is s with its sign turned."""
    if x_MHD.dtype == torch.float64:
        phase64 = positions_M.double()[:, None] * frequencies_P.double()
        return turned64(x_MHD, phase64, factor, interleaved, opposite)
    cosine_M1P, sine_M1P = (each[:, None] for each in _cosine_and_sine(positions_M, frequencies_P, factor))
    if opposite:
        sine_M1P = -sine_M1P
    x = x_MHD.detach().float().cpu().numpy()
    first, second = parts(x.shape[-1], interleaved)
    a, b, y = x[..., first], x[..., second], np.empty_like(x)
    y[..., first] = fma32(a, cosine_M1P, -(b * sine_M1P))
    y[..., second] = fma32(b, cosine_M1P, a * sine_M1P)
    return torch.from_numpy(y).to(device=x_MHD.device, dtype=x_MHD.dtype)


def parts(size: int, interleaved: bool) -> tuple[slice, slice]:
    """Where the first and the second elements of all pairs lie in a head."""
    half = size // 2
    return (slice(0, size, 2), slice(1, size, 2)) if interleaved else (slice(0, half), slice(half, size))


def _cosine_and_sine(positions_M: Tensor, frequencies_P: Tensor, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Each times factor, unless that is 1."""
    phase = positions_M.cpu().numpy().astype(np.float32)[:, None] * frequencies_P.cpu().numpy()
    cosine, sine = evaluate("cos", phase), evaluate("sin", phase)
    return (cosine, sine) if factor == 1.0 else (cosine * np.float32(factor), sine * np.float32(factor))


def rope64(
    x: Tensor, positions: Tensor, theta: float = 10000.0, *, layout: str = "half", scaling: RopeScaling | None = None
) -> Tensor:
    """(a cos f - b sin f, b cos f + a sin f) m, f = position theta^(-2i/D) (scaled), in float64."""
    angles = torch.tensor(frequencies(x.shape[-1], theta, scaling), dtype=torch.float64)
    return turned64(
        x.double(), positions.double()[..., None] * angles, attention_factor(scaling), layout == "interleaved", False
    )


def turned64(x: Tensor, phase: Tensor, factor: float, interleaved: bool, opposite: bool) -> Tensor:
    """Every pair of x (..., H, D) turned by its phase (..., P), times factor."""
    cosine, sine = factor * phase.cos()[..., None, :], factor * (-phase if opposite else phase).sin()[..., None, :]
    first, second = parts(x.shape[-1], interleaved)
    a, b = x[..., first], x[..., second]
    y = torch.empty_like(x)
    y[..., first], y[..., second] = a * cosine - b * sine, b * cosine + a * sine
    return y
