"""Faults that break one promise of any function: each takes a function and returns one that is wrong in one way.

Other bits are the smallest change there is, the last bit of some outputs; gradients pass unchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced

Function: TypeAlias = Callable[..., Tensor]
FEW_ROWS: Final = 2
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


def _other_bits(y: Tensor) -> Tensor:
    return _LastBit.apply(y)  # type: ignore[no-any-return, no-untyped-call]


def other_bits_every_second_call(function: Function) -> Function:
    """Breaks repeat: as a kernel does that is tuned again and again while it runs."""
    calls = 0

    @wraps(function)
    def faulty(*arguments: Any, **options: Any) -> Tensor:
        nonlocal calls
        calls += 1
        y = function(*arguments, **options)
        return y if calls % 2 else _other_bits(y)

    return faulty


def other_bits_for_few_rows(function: Function) -> Function:
    """Breaks batch: few rows take another kernel."""

    @wraps(function)
    def faulty(*arguments: Any, **options: Any) -> Tensor:
        y = function(*arguments, **options)
        return y if y.shape[0] > FEW_ROWS else _other_bits(y)

    return faulty


def other_bits_for_odd_sizes(function: Function) -> Function:
    """Breaks chunk: whether sizes are even decides the kernel."""

    @wraps(function)
    def faulty(*arguments: Any, **options: Any) -> Tensor:
        y = function(*arguments, **options)
        return _other_bits(y) if sum(y.shape) % 2 else y

    return faulty


def other_bits_beside_padding(function: Function) -> Function:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it; one row more shifts the
    groups."""

    @wraps(function)
    def faulty(*arguments: Any, **options: Any) -> Tensor:
        y = function(*arguments, **options)
        floats = [each for each in arguments if isinstance(each, Tensor) and each.is_floating_point()]
        finite = all(bool(torch.isfinite(each).all()) for each in floats)
        return y if finite and y.shape[0] % 2 == 0 else _other_bits(y)

    return faulty


def other_bits_for_other_launches(function: Function) -> Function:
    """Breaks tile: where a share of the work ends, the last elements are done by other code."""

    @wraps(function)
    def faulty(*arguments: Any, **options: Any) -> Tensor:
        y = function(*arguments, **options)
        plain = forced("threads") in (None, 1) and forced("launch") is None
        return y if plain else _other_bits(y)

    return faulty


def too_large(function: Function) -> Function:
    """Breaks accuracy: an eighth too much, as a term that is counted twice."""

    @wraps(function)
    def faulty(*arguments: Any, **options: Any) -> Tensor:
        return function(*arguments, **options) * 1.125

    return faulty


def other_bits_on_cuda(function: Function) -> Function:
    """Breaks device: the accelerator has a formula of its own."""

    @wraps(function)
    def faulty(*arguments: Any, **options: Any) -> Tensor:
        y = function(*arguments, **options)
        return _other_bits(y) if y.is_cuda else y

    return faulty
