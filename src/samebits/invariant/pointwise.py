"""Elementwise functions that torch's CPU library computes in two ways, by vector and one by one, with other bits.

There a value's bits depend on its place in memory. These come from samebits' own elementary functions instead, with
IEEE operations around them: one formula an element, wherever it lies. Off the CPU torch's own are used."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from samebits import native
from samebits.invariant.refused import RefusedError
from samebits.numerics.elementary import FUNCTIONS
from samebits.ops.arguments import DTYPES, short

MOST_FACTORS: Final = 64
_DIGITS: Final = Context(prec=40)
HALF_WIDTH: Final = (torch.bfloat16, torch.float16)


def _apply(name: str, x: Tensor) -> Tensor:
    """One elementary function in float32 on the CPU."""
    given = x.contiguous()
    result = torch.empty_like(given)
    native.call("elementary", "ippq", FUNCTIONS.index(name), given.data_ptr(), result.data_ptr(), given.numel())
    return result


def _wide(x: Tensor) -> Tensor:
    """float32, exactly. Integers go to float32 as torch's functions take them."""
    if x.is_complex() or (x.is_floating_point() and x.dtype not in DTYPES):
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


def sqrt(x: Tensor) -> Tensor:
    """Correctly rounded: torch's vector library on x86 is not. numpy uses the processor's instruction."""
    if x.device.type != "cpu":
        return torch.sqrt(x)
    with np.errstate(invalid="ignore"):
        return _like(torch.from_numpy(np.asarray(np.sqrt(_wide(x).detach().numpy()))), x)


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
    if isinstance(exponent, Tensor) and isinstance(x, Tensor) and not exponent.is_floating_point():
        return _whole_powers(x, exponent)
    if isinstance(exponent, Tensor) or not isinstance(x, Tensor):
        return _powers_of(x, exponent)
    wide = _wide(x)
    if exponent in (0.5, -0.5):
        return _like(sqrt(wide) if exponent > 0 else rsqrt(wide), x)
    if exponent == 0:
        return torch.ones_like(x)
    if not float(exponent).is_integer() or abs(exponent) > 8:
        raise RefusedError(f"the power {exponent} is not offered; allowed: 0.5, -0.5 and whole numbers to 8")
    result = wide
    for _ in range(abs(int(exponent)) - 1):
        result = result * wide
    return _like(result if exponent > 0 else 1.0 / result, x)


def _powers_of(base: Any, exponent: Tensor) -> Tensor:
    """A positive number to the power of each element: 2^f times 2^n, where n + f = y log2(base)."""
    if isinstance(base, Tensor):
        raise RefusedError("a power with a tensor as exponent is not offered; write exp(y * log(x))")
    if isinstance(base, complex) or not 0 < base < math.inf:
        raise RefusedError(f"powers of {base} are not offered; allowed: of a positive number")
    # Decimal's logarithm is correctly rounded, and so the same everywhere.
    product = _wide(exponent).double() * float(Decimal(base).ln(_DIGITS) / Decimal(2).ln(_DIGITS))
    whole = product.clamp(-200, 200).round()
    # In two steps: 2^n alone may be too large where the power is not. Only the last product rounds.
    half = (whole * 0.5).floor()
    return _like(exp2((product - whole).float()) * exp2(half.float()) * exp2((whole - half).float()), exponent)


def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    wide = _wide(x)
    scaled = wide * beta
    return _like(torch.where(scaled > threshold, wide, torch.log1p(exp(scaled)) / beta), x)


def softplus_backward(dy: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    scaled = _wide(x) * beta
    return _like(dy.float() * torch.where(scaled > threshold, 1.0, sigmoid(scaled)), x)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    if x.shape[dim] % 2:
        return torch.nn.functional.glu(x, dim)  # which raises
    value, gate = _wide(x).chunk(2, dim)
    return _like(value * sigmoid(gate), x)


def glu_backward(dy: Tensor, x: Tensor, dim: int) -> Tensor:
    (value, gate), wide = _wide(x).chunk(2, dim), dy.float()
    s = sigmoid(gate)
    return _like(torch.cat([wide * s, wide * value * (s * (1.0 - s))], dim), x)


def _whole_powers(x: Tensor, exponent: Tensor) -> Tensor:
    """x to the power of whole numbers, factor by factor from the first."""
    top = int(exponent.max()) if exponent.numel() else 0
    if exponent.numel() and (int(exponent.min()) < 0 or top > MOST_FACTORS):
        raise RefusedError(
            f"its exponents are {int(exponent.min())} to {top}; allowed: whole numbers from 0 to {MOST_FACTORS}"
        )
    wide = _wide(x)
    result = torch.ones(torch.broadcast_shapes(x.shape, exponent.shape))  # type: ignore[no-untyped-call]
    for factor in range(top):
        result = torch.where(factor < exponent, result * wide, result)
    return _like(result, x)


def _widened(*values: Any) -> tuple[torch.dtype, list[Any]]:
    """(dtype of the result, 16-bit tensors as float32): every step below is then one IEEE operation of torch's."""
    tensors = [each for each in values if isinstance(each, Tensor)]
    dtype = tensors[0].dtype
    for each in tensors[1:]:
        dtype = torch.promote_types(dtype, each.dtype) if each.dim() else dtype
    return dtype, [each.float() if isinstance(each, Tensor) and each.dtype in HALF_WIDTH else each for each in values]


def add(x: Any, y: Any, alpha: float = 1) -> Tensor:
    """x + alpha * y, the product rounded first: torch fuses the two, or not, by place."""
    if alpha == 1:
        return torch.add(x, y)
    dtype = torch.result_type(x, y)
    _, (x, y) = _widened(x, y)
    return torch.add(x, y * alpha).to(dtype)


def subtract(x: Any, y: Any, alpha: float = 1) -> Tensor:
    return torch.sub(x, y) if alpha == 1 else add(x, y, alpha=-alpha)


def subtract_from(x: Any, y: Any, alpha: float = 1) -> Tensor:
    """y - alpha * x."""
    return torch.rsub(x, y) if alpha == 1 else add(y, x, alpha=-alpha)


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    dtype, (x, a, b) = _widened(x, a, b)
    product: Tensor = a * b
    return (x + (product if value == 1 else product * value)).to(dtype)


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    dtype, (x, a, b) = _widened(x, a, b)
    quotient: Tensor = (a if value == 1 else a * value) / b
    return (x + quotient).to(dtype)


def lerp(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    """From the nearer end, as torch does it."""
    dtype, (start, end, weight) = _widened(start, end, weight)
    way = end - start
    near, far = start + way * weight, end - way * (1 - weight)
    is_near = weight.abs() < 0.5 if isinstance(weight, Tensor) else torch.tensor(abs(weight) < 0.5)
    return torch.where(is_near, near, far).to(dtype)


def tanh_backward(dy: Tensor, y: Tensor) -> Tensor:
    wide = y.float()
    return (dy.float() * (1.0 - wide * wide)).to(dy.dtype)


def sigmoid_backward(dy: Tensor, y: Tensor) -> Tensor:
    wide = y.float()
    return (dy.float() * ((1.0 - wide) * wide)).to(dy.dtype)


def fmod(x: Any, y: Any) -> Tensor:
    """x less whole multiples of y, exact. torch's vector form gives NaN where x / y is beyond the largest number."""
    return _left_over(x, y, of_sign=False)


def remainder(x: Any, y: Any) -> Tensor:
    """The same with the sign of y."""
    return _left_over(x, y, of_sign=True)


def _left_over(x: Any, y: Any, *, of_sign: bool) -> Tensor:
    dtype = torch.result_type(x, y)
    wide = torch.float32 if dtype in HALF_WIDTH else dtype
    # By way of the result's dtype, as torch takes a number beside a tensor.
    x, y = (torch.as_tensor(each, dtype=dtype).to(wide) for each in (x, y))
    with np.errstate(invalid="ignore"):
        left = torch.from_numpy(np.asarray(np.fmod(x.detach().numpy(), y.detach().numpy())))
    if of_sign:
        left = torch.where((left != 0) & ((y < 0) != (left < 0)), left + y, left)
    return left.to(dtype)
