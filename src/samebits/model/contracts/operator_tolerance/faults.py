"""Planted faults of operators and their bounds: coarser numbers, gradients of another size, bounds that say nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.contracts.spec import Bounded, Function
from samebits.model.contracts.operator_tolerance import computed, unseen


def _coarse(function: Function) -> Function:
    """The operator on numbers of five bits, as if they were stored so."""

    def call(*arguments: Tensor) -> Tensor:
        return function(*(_five_bits(value) if value.is_floating_point() else value for value in arguments))

    return call


def _five_bits(value: Tensor) -> Tensor:
    fraction, exponent = torch.frexp(value.detach().float())
    rounded = torch.ldexp((fraction * 32).round() / 32, exponent).to(value.dtype)
    return value + (rounded - value.detach())


class _Larger(torch.autograd.Function):
    """The output as it is; what flows back is a sixteenth larger."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy * (1 + 2.0**-4)


def _larger_gradients(function: Function) -> Function:
    def call(*arguments: Tensor) -> Tensor:
        output: Tensor = _Larger.apply(function(*arguments))  # type: ignore[no-untyped-call]
        return output

    return call


def coarse_arguments(size: Tensor, recipe: Tensor, like: Tensor, seed: Tensor) -> Tensor:
    """Operators keep five bits of what they are given."""
    return computed(size, recipe, like, seed, wrap=_coarse)


def larger_gradients(size: Tensor, recipe: Tensor, like: Tensor, seed: Tensor) -> Tensor:
    """Outputs are right and gradients are not."""
    return computed(size, recipe, like, seed, wrap=_larger_gradients)


def _anything(bound: Bounded) -> Tensor:
    return torch.full_like(bound.allowed, torch.inf)


def _as_large_as_the_result(bound: Bounded) -> Tensor:
    return bound.allowed + bound.exact.abs()


def bounds_of_infinity(size: Tensor, recipe: Tensor, like: Tensor, seed: Tensor) -> Tensor:
    """A bound that nothing exceeds."""
    return unseen(size, recipe, like, seed, allowed=_anything)


def bounds_of_the_result(size: Tensor, recipe: Tensor, like: Tensor, seed: Tensor) -> Tensor:
    """A bound as large as what it bounds: zeros would pass."""
    return unseen(size, recipe, like, seed, allowed=_as_large_as_the_result)
