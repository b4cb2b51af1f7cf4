"""Elementwise functions that torch's CPU library computes in two ways, by vector and one by one, with other bits.

There a value's bits depend on its place in memory. These come from samebits' own elementary functions instead, with
IEEE operations around them: one formula an element, wherever it lies. Off the CPU torch's own are used."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from samebits import native
from samebits.invariant.refused import RefusedError
from samebits.numerics.elementary import FUNCTIONS
from samebits.ops.arguments import DTYPES, short

HALF_WIDTH: Final = (torch.bfloat16, torch.float16)


def _apply(name: str, x: Tensor) -> Tensor:
    """One elementary function in float32 on the CPU."""
    given = x.contiguous()
    result = torch.empty_like(given)
    native.call("elementary", "ippq", FUNCTIONS.index(name), given.data_ptr(), result.data_ptr(), given.numel())
    return result


def _wide(x: Tensor) -> Tensor:
    """float32, exactly. Integers go to float32 as torch's functions take them."""
    if x.is_floating_point() and x.dtype not in DTYPES:
        raise RefusedError(f"samebits computes {', '.join(map(short, DTYPES))}, not {short(x.dtype)}; convert it")
    return x.float()


def _like(result: Tensor, x: Tensor) -> Tensor:
    return result.to(x.dtype) if x.is_floating_point() else result


def _function(name: str) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return getattr(torch, name)(x)  # type: ignore[no-any-return]
        return _like(_apply(name, _wide(x)), x)

    function.__name__ = name
    return function


exp, exp2, log, rsqrt, sin, cos, tanh, erf, sigmoid = (
    _function(name) for name in ("exp", "exp2", "log", "rsqrt", "sin", "cos", "tanh", "erf", "sigmoid")
)


def silu(x: Tensor) -> Tensor:
    wide = _wide(x)
    return (wide * sigmoid(wide)).to(x.dtype)


def silu_backward(dy: Tensor, x: Tensor) -> Tensor:
    wide = _wide(x)
    s = sigmoid(wide)
    return (dy.float() * (s + wide * s * (1.0 - s))).to(x.dtype)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    wide = _wide(x)
    inner = erf(wide * math.sqrt(0.5)) if approximate == "none" else tanh(_tanh_argument(wide))
    return ((wide * 0.5) * (1.0 + inner)).to(x.dtype)


def _tanh_argument(x: Tensor) -> Tensor:
    return (x + 0.044715 * (x * x) * x) * math.sqrt(2.0 / math.pi)


def gelu_backward(dy: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    wide = _wide(x)
    if approximate == "none":
        density = exp((wide * -0.5) * wide) * (1.0 / math.sqrt(2.0 * math.pi))
        slope = 0.5 * (1.0 + erf(wide * math.sqrt(0.5))) + wide * density
    else:
        t = tanh(_tanh_argument(wide))
        inner = (1.0 + (3 * 0.044715) * (wide * wide)) * math.sqrt(2.0 / math.pi)
        slope = 0.5 * (1.0 + t) + (wide * 0.5) * (1.0 - t * t) * inner
    return (dy.float() * slope).to(x.dtype)


def power(x: Tensor, exponent: Any) -> Tensor:
    """Powers that are products, roots or quotients. Others torch computes by place."""
    if isinstance(exponent, Tensor) or not isinstance(x, Tensor):
        raise RefusedError("a power with a tensor as exponent is not offered; write exp(y * log(x))")
    wide = _wide(x)
    if exponent in (0.5, -0.5):
        return _like(wide.sqrt() if exponent > 0 else rsqrt(wide), x)
    if exponent != int(exponent) or not 0 < abs(exponent) <= 8:
        raise RefusedError(f"the power {exponent} is not offered; allowed: 0.5, -0.5 and whole numbers to 8")
    result = wide
    for _ in range(abs(int(exponent)) - 1):
        result = result * wide
    return _like(result if exponent > 0 else 1.0 / result, x)


def add(x: Any, y: Any, *, alpha: float = 1) -> Tensor:
    """x + alpha * y. With a factor, 16-bit formats are added in float32: torch rounds in between, or not, by place."""
    if alpha == 1 or not any(isinstance(each, Tensor) and each.dtype in HALF_WIDTH for each in (x, y)):
        return torch.add(x, y, alpha=alpha)
    dtype = torch.result_type(x, y)
    x, y = (each.float() if isinstance(each, Tensor) else each for each in (x, y))
    return torch.add(x, y, alpha=alpha).to(dtype)


def subtract(x: Any, y: Any, *, alpha: float = 1) -> Tensor:
    return add(x, y, alpha=-alpha) if alpha != 1 else torch.sub(x, y)
