"""SwiGLU by Triton: one pass over the elements; the backward pass recomputes the sigmoid instead of storing it.

Knows nothing of autograd, validation or empty tensors; the public function does. Block and warps decide speed alone."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.elements import elements_of, run_elements, store_elements
from samebits.ops._triton.halves import load_widened, sigmoid


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=["gate_ptr", "up_ptr", "y_ptr"])
def swiglu_forward(gate_ptr, up_ptr, y_ptr, N: tl.int64, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """y = round((gate * sigmoid(gate)) * up)."""
    offsets, inside = elements_of(N, BLOCK, ALIGNED)
    g = load_widened(gate_ptr, offsets, inside, ALIGNED)
    u = load_widened(up_ptr, offsets, inside, ALIGNED)
    store_elements(y_ptr, offsets, (g * sigmoid(g, gate_ptr.dtype.element_ty)) * u, inside, ALIGNED)


@triton.jit(
    do_not_specialize=["N"], do_not_specialize_on_alignment=["dy_ptr", "gate_ptr", "up_ptr", "dgate_ptr", "dup_ptr"]
)
def swiglu_backward(
    dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, N: tl.int64, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    """dup = round(dy * a), a = gate * s, s = sigmoid(gate); dgate = round((dy * up) * fma(a, 1 - s, s))."""
    offsets, inside = elements_of(N, BLOCK, ALIGNED)
    dy = load_widened(dy_ptr, offsets, inside, ALIGNED)
    g = load_widened(gate_ptr, offsets, inside, ALIGNED)
    u = load_widened(up_ptr, offsets, inside, ALIGNED)
    s = sigmoid(g, gate_ptr.dtype.element_ty)
    a = g * s
    store_elements(dgate_ptr, offsets, (dy * u) * tl.fma(a, 1.0 - s, s), inside, ALIGNED)
    store_elements(dup_ptr, offsets, dy * a, inside, ALIGNED)


def forward(gate: Tensor, up: Tensor) -> Tensor:
    """y = (gate * sigmoid(gate)) * up."""
    return run_elements(swiglu_forward, gate, up)[0]


def backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    """The gradients of gate and of up."""
    return tuple(run_elements(swiglu_backward, dy, gate, up, outputs=2))
