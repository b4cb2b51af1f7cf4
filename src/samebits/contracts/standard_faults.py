"""Faults that break one promise of any function: each takes a function and returns one that is wrong in one way.

Other bits are the smallest change there is, the last bit of every output; gradients pass unchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced

Function: TypeAlias = Callable[..., Tensor]
FEW_ROWS: Final = 2
BLOCK: Final = 16
FORMATS: Final = (torch.float32, torch.bfloat16, torch.float16)
WHOLE: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _LastBit(torch.autograd.Function):
    """The last bit of every number turned over."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        whole = y.detach().clone().contiguous()
        whole.view(WHOLE[y.element_size()]).bitwise_xor_(1)
        return whole

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        return dy[0]


def _other_bits(function: Function, when: Callable[[tuple[Any, ...], Tensor], bool]) -> Function:
    """The function with other bits wherever `when` says so of its arguments and its output."""

    @wraps(function)
    def faulty(*arguments: Any, **options: Any) -> Tensor:
        y = function(*arguments, **options)
        return _LastBit.apply(y) if when(arguments, y) else y  # type: ignore[no-untyped-call]

    return faulty


def other_bits_every_second_call(function: Function) -> Function:
    """Breaks repeat: as a kernel does that is tuned again and again while it runs."""
    calls = count()
    return _other_bits(function, lambda *_: next(calls) % 2 == 1)


def other_bits_for_few_rows(function: Function) -> Function:
    """Breaks batch: few rows take another kernel."""
    return _other_bits(function, lambda _, y: y.shape[0] <= FEW_ROWS)


def other_bits_for_odd_sizes(function: Function) -> Function:
    """Breaks chunk: whether sizes are even decides the kernel."""
    return _other_bits(function, lambda _, y: sum(y.shape) % 2 == 1)


def other_bits_beside_padding(function: Function) -> Function:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it; one row more shifts groups."""

    def padded(arguments: tuple[Any, ...], y: Tensor) -> bool:
        floats = [each for each in arguments if isinstance(each, Tensor) and each.is_floating_point()]
        return y.shape[0] % 2 == 1 or not all(bool(torch.isfinite(each).all()) for each in floats)

    return _other_bits(function, padded)


def other_bits_for_other_launches(function: Function) -> Function:
    """Breaks tile: where a share of the work ends, the last elements are done by other code."""
    return _other_bits(function, lambda *_: forced("threads") not in (None, 1) or forced("launch") is not None)


def other_bits_on_cuda(function: Function) -> Function:
    """Breaks device: the accelerator has a formula of its own."""
    return _other_bits(function, lambda _, y: y.is_cuda)


def too_large(function: Function) -> Function:
    """Breaks accuracy: an eighth too much, as a term that is counted twice."""
    return wraps(function)(lambda *arguments, **options: function(*arguments, **options) * 1.125)


def tail_is_not_written(function: Function) -> Function:
    """Breaks accuracy: elements past the last whole block of 16 stay as they were allocated."""

    @wraps(function)
    def faulty(*arguments: Any, **options: Any) -> Tensor:
        y = function(*arguments, **options)
        return y * (torch.arange(y.shape[-1], device=y.device) < y.shape[-1] // BLOCK * BLOCK)

    return faulty


def overwrites_its_last_argument(function: Function) -> Function:
    """Breaks what inputs keep: the result is written into the memory of one."""
    return wraps(function)(lambda *arguments, **options: arguments[-1].copy_(function(*arguments, **options)))


def takes_anything(function: Function) -> Function:
    """Breaks refusal: tensors that do not fit the first are cast and cropped until they do."""

    @wraps(function)
    def faulty(first: Tensor, *others: Tensor, **options: Any) -> Tensor:
        dtype = first.dtype if first.dtype in FORMATS else torch.float32
        return function(first.to(dtype), *(each[: first.shape[0]].to(dtype) for each in others), **options)

    return faulty
