"""What a step of AdamW checks before a kernel runs: numbers, tensors that belong together, memory of their own.

Knows neither `adamw_` nor the optimizer but by the name it is given for the message."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.ops.arguments import DTYPES, check_integer, short

# The smallest normal float32: a smaller eps could not keep a zero second moment from dividing by zero.
SMALLEST_EPS = 2.0**-126


def check_step(step: int) -> None:
    check_integer("adamw_", "step", step, 1)


def check_numbers(operator: str, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
    """One line for the first hyperparameter that makes no sense."""
    for name, value in (("lr", lr), ("beta1", beta1), ("beta2", beta2), ("eps", eps), ("weight_decay", weight_decay)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{operator}: {name} is a {type(value).__name__}; allowed: a number")
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        if not 0.0 <= value < 1.0:
            raise ValueError(f"{operator}: {name} is {value}; allowed: 0 to 1, 1 left out")
    for name, value in (("lr", lr), ("weight_decay", weight_decay)):
        if not 0.0 <= value < math.inf:
            raise ValueError(f"{operator}: {name} is {value}; allowed: finite, at least 0")
    if not SMALLEST_EPS <= eps < math.inf:
        raise ValueError(f"{operator}: eps is {eps}; allowed: finite, at least 2^-126")


def check_update(operator: str, backend: str, param: Tensor, grad: Tensor, states: dict[str, Tensor]) -> None:
    """Dtypes, shapes and devices that belong together."""
    allowed = (*DTYPES, torch.float64) if backend == "reference" else DTYPES
    if param.dtype not in allowed:
        names = ", ".join(short(dtype) for dtype in allowed)
        raise ValueError(f"{operator}: param has dtype {short(param.dtype)}; allowed with backend={backend!r}: {names}")
    wide = torch.float64 if param.dtype == torch.float64 else torch.float32
    for name, tensor in (("grad", grad), *states.items()):
        if tensor.layout is not torch.strided:
            raise ValueError(f"{operator}: {name} has layout {tensor.layout}; allowed: strided")
        fitting = (param.dtype, wide) if name == "grad" else (wide,)
        if tensor.dtype not in fitting:
            names = " or ".join(dict.fromkeys(short(dtype) for dtype in fitting))
            raise ValueError(f"{operator}: {name} has dtype {short(tensor.dtype)}; allowed: {names}")
        if tensor.shape != param.shape:
            raise ValueError(
                f"{operator}: {name} has shape {tuple(tensor.shape)}, param has {tuple(param.shape)}; they must agree"
            )
        if tensor.device != param.device:
            raise ValueError(f"{operator}: {name} is on {tensor.device}, param on {param.device}; they must agree")


def check_memory(tensors: dict[str, Tensor]) -> None:
    """What is written must be nobody else's memory."""
    seen: dict[int, str] = {}
    for name, tensor in tensors.items():
        other = seen.setdefault(tensor.data_ptr(), name)
        if other != name and tensor.numel():
            raise ValueError(f"adamw_: {name} shares its memory with {other}; give each memory of its own")
