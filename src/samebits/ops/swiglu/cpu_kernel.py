"""SwiGLU on the CPU: hands tensors to the C++ kernel beside this file."""

from torch import Tensor

from samebits.ops._cpu.elements import run_elements


def forward(gate: Tensor, up: Tensor) -> Tensor:
    """y = (gate * sigmoid(gate)) * up."""
    return run_elements("swiglu_forward", gate, up)[0]


def backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    """The gradients of gate and of up."""
    return tuple(run_elements("swiglu_backward", dy, gate, up, outputs=2))
