"""GELU on the CPU: hands tensors to the C++ kernel beside this file."""

from torch import Tensor

from samebits.ops._cpu.elements import run_elements


def forward(x: Tensor, by_tanh: bool) -> Tensor:
    """y = (x * 0.5) * (1 + e), e the error function or tanh."""
    return run_elements("gelu_forward", x, numbers=(int(by_tanh),))[0]


def backward(dy: Tensor, x: Tensor, by_tanh: bool) -> Tensor:
    """The gradient of x."""
    return run_elements("gelu_backward", dy, x, numbers=(int(by_tanh),))[0]
