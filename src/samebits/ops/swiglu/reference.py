"""SwiGLU, said plainly: the definition that every backend is held to.

No sum, hence no order but that of the operations written below. Rounding: float32 after every one of them, once to the
dtype at the end. In float64 the same formulas are plain torch, exact enough to judge the others against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import evaluate
from samebits.numerics.fma import fma32
from samebits.ops.float32 import float32_of, like, quietly


@quietly
def forward(gate: Tensor, up: Tensor) -> Tensor:
    """y = (gate * s) * up, s = sigmoid(gate)."""
    if gate.dtype == torch.float64:
        return swiglu64(gate, up)
    g = float32_of(gate)
    return like((g * evaluate("sigmoid", g)) * float32_of(up), gate)


@quietly
def backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """dup = dy * a, a = gate * s; dgate = (dy * up) * (s + a * (1 - s)), its bracket fused into one rounding."""
    if gate.dtype == torch.float64:
        s64 = gate.sigmoid()
        return dy * up * (s64 + gate * s64 * (1 - s64)), dy * gate * s64
    g, gradient = float32_of(gate), float32_of(dy)
    s = evaluate("sigmoid", g)
    a = g * s
    dgate = (gradient * float32_of(up)) * fma32(a, np.float32(1.0) - s, s)
    return like(dgate, gate), like(gradient * a, up)


def swiglu64(gate: Tensor, up: Tensor) -> Tensor:
    """y = gate sigmoid(gate) up, in float64."""
    return gate.double() * gate.double().sigmoid() * up.double()
