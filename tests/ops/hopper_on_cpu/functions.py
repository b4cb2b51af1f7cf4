"""What is computed with values: choices, extremes, reductions, and samebits' own products and elementary functions.

A GPU's exp2 has other bits than the one here; two kernels can be compared all the same, for both have this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from tests.ops.hopper_on_cpu.finding import Unsupported
from tests.ops.hopper_on_cpu.values import Tensor, layout_of, promoted, tensor_of
from triton.experimental.gluon.language import SliceLayout

from samebits.numerics.adder import HOPPER, HOPPER_FLOAT16, HOPPER_TFLOAT32, fused_chain
from samebits.numerics.elementary import elementary
from samebits.numerics.fma import fma32


def where(condition: Any, left: Any, right: Any) -> Tensor:
    a, b, dtype = promoted(left, right)
    chooses = tensor_of(condition)
    return Tensor(torch.where(chooses.data != 0, a, b), dtype, layout_of(chooses, left, right))


def maximum(left: Any, right: Any, propagate_nan: Any = tl.PropagateNan.NONE) -> Tensor:
    """As PTX has it: a number rather than a NaN unless those are to be handed on, +0 rather than -0."""
    a, b, dtype = promoted(left, right)
    larger = torch.maximum(a, b)
    if dtype.is_floating():
        either = torch.fmax(a, b) if propagate_nan == tl.PropagateNan.NONE else larger
        larger = torch.where((a == 0) & (b == 0), a + b, either)
    return Tensor(larger, dtype, layout_of(left, right))


def minimum(left: Any, right: Any) -> Tensor:
    a, b, dtype = promoted(left, right)
    smaller = torch.minimum(a, b)
    if dtype.is_floating():
        smaller = torch.where((a == 0) & (b == 0), -(-a - b), torch.fmin(a, b))
    return Tensor(smaller, dtype, layout_of(left, right))


def fma(a: Any, b: Any, c: Any) -> Tensor:
    """a * b + c, rounded once."""
    operands = [tensor_of(each, None if isinstance(each, Tensor) else tl.float32) for each in (a, b, c)]
    if any(each.dtype is not tl.float32 for each in operands):
        raise Unsupported(f"fma of {', '.join(str(each.dtype) for each in operands)}; only of float32")
    result = fma32(*(each.data.numpy() for each in operands))
    return Tensor(torch.from_numpy(np.asarray(result)), tl.float32, layout_of(*operands))


def function(name: str, x: Any) -> Tensor:
    """An elementary function of float32 as samebits defines it: not the GPU's bits, but the same in every kernel."""
    given = tensor_of(x)
    if given.dtype is not tl.float32:
        raise Unsupported(f"{name} of {given.dtype}; only of float32")
    result = elementary(name, given.data.contiguous().numpy(), threads=1)
    return Tensor(torch.from_numpy(np.asarray(result)), tl.float32, given.layout)


def reduced(
    x: Tensor, axis: int | None, combine: Callable[[Any, Any], Any], keep_dims: bool = False, *, by_halves: bool = False
) -> Tensor:
    """Along an axis, or over everything: left to right, or by halves where the order cannot be seen in the result."""
    whole, along = (x.data.reshape(-1), 0) if axis is None else (x.data, axis % x.data.dim())
    layout = SliceLayout(along, x.layout) if x.layout is not None and whole.dim() > 1 else None
    while by_halves and whole.shape[along] % 2 == 0:
        low, high = whole.chunk(2, along)
        whole = combine(Tensor(low, x.dtype), Tensor(high, x.dtype)).data
    result, *others = (Tensor(each, x.dtype, layout) for each in whole.unbind(along))
    for each in others:
        result = combine(result, each)
    if not keep_dims:
        return result
    sizes = [1 if axis is None or n == along else size for n, size in enumerate(x.shape)]
    return Tensor(result.data.reshape(sizes), result.dtype, x.layout)


def product(a: torch.Tensor, b: torch.Tensor, start: torch.Tensor | None, *, tensor_cores: bool) -> torch.Tensor:
    """a @ b onto `start` or zero, k ascending: a Hopper GPU's adder, or fused multiply-adds for float32 without it."""
    if a.dtype != b.dtype:
        raise TypeError(f"a product of {a.dtype} and {b.dtype}")
    adders = {torch.bfloat16: HOPPER, torch.float16: HOPPER_FLOAT16}
    if tensor_cores:
        adders[torch.float32] = HOPPER_TFLOAT32
    if a.dtype in adders:
        sums = fused_chain(a.contiguous(), b.contiguous(), adders[a.dtype], start, threads=1)
        return torch.from_numpy(sums)
    if a.dtype != torch.float32:
        raise Unsupported(f"a product of {a.dtype}")
    chain = torch.zeros(a.shape[0], b.shape[1]).numpy() if start is None else start.numpy()
    for k in range(a.shape[1]):
        chain = fma32(a[:, k, None].numpy(), b[None, k].numpy(), chain)
    return torch.from_numpy(chain)
