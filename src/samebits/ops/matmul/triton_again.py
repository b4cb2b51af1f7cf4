"""Products launched before, launched again by their sizes alone: the choice of a tile and its arguments are kept.

Decides speed alone: the launch is the one that triton_kernel.py chose for the same sizes, strides and formats. Only for
operands aligned to 16 bytes, as the tensor memory accelerator wants them; where a checker forces a launch or a profiler
watches, nothing here is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops._triton.launch import observed, run_again
from samebits.ops._triton.repeated import Bound
from samebits.ops.matmul.triton_products import matmul_described

KEPT: Final = 4096
"""Sizes that are remembered."""


@dataclass(frozen=True, slots=True)
class Product:
    """A launch, and what its result looks like."""

    bound: Bound
    shape: tuple[int, int]
    dtype: torch.dtype
    swapped: bool
    """The left operand of the launch is b."""


_known: dict[tuple[Any, ...], Product] = {}


def remember(a: Tensor, b: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None, product: Product) -> None:
    if len(_known) >= KEPT:
        _known.clear()
    _known[_sizes(a, b, bias, out_dtype)] = product


def again(a: Tensor, b: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None) -> Tensor | None:
    """round(a b + bias) as it was launched before; None where it was not, or must be launched otherwise now."""
    known = _known.get(_sizes(a, b, bias, out_dtype))
    if known is None or forced("launch") is not None or observed():
        return None
    a_at, b_at, device = a.data_ptr(), b.data_ptr(), a.get_device()
    if (a_at | b_at) % 16 or device != torch.cuda.current_device():
        return None
    out = a.new_empty(known.shape, dtype=known.dtype)
    operands = (b_at, a_at) if known.swapped else (a_at, b_at)
    beside = () if bias is None else (bias.data_ptr(),)
    run_again(matmul_described, known.bound, device, *operands, out.data_ptr(), *beside)
    return out


def _sizes(a: Tensor, b: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None) -> tuple[Any, ...]:
    """All that a launch is chosen by, but for alignment."""
    of_bias = None if bias is None else bias.stride()
    return (a.shape, a.stride(), b.shape, b.stride(), a.dtype, of_bias, out_dtype, a.get_device())
