"""Planted faults of operators: one that casts, one that answers in float32, one that crashes, one that says little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from samebits.model.contracts.operator_dtypes import in_every_dtype, in_mixed_dtypes

Operator = Callable[..., Any]


def _upcast(value: Any) -> Any:
    """bfloat16 and float64 become float32."""
    casts = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float64)
    return value.float() if casts else value


def _casting(function: Operator) -> Operator:
    return lambda **given: function(**{name: _upcast(value) for name, value in given.items()})


def _float32_results(function: Operator) -> Operator:
    """Computed in its dtype, and widened at the end."""

    def call(**given: Any) -> Any:
        found = function(**given)
        return found.float() if isinstance(found, Tensor) and found.is_floating_point() else found

    return call


def _crashing(function: Operator) -> Operator:
    """A refusal is another kind of error."""

    def call(**given: Any) -> Any:
        try:
            return function(**given)
        except ValueError as error:
            raise RuntimeError("unsupported ScalarType") from error

    return call


def _curt(function: Operator) -> Operator:
    """A refusal does not name the dtype."""

    def call(**given: Any) -> Any:
        try:
            return function(**given)
        except ValueError as error:
            raise ValueError("wrong dtype") from error

    return call


def _promising(function: Operator) -> Operator:
    """A refusal names one dtype more than are taken."""

    def call(**given: Any) -> Any:
        try:
            return function(**given)
        except ValueError as error:
            raise ValueError(str(error).replace("allowed: float32", "allowed: float8_e4m3fn, float32")) from error

    return call


def casts_silently(seed: Tensor) -> Tensor:
    """float64 is taken and computed in float32."""
    return in_every_dtype(seed, wrap=_casting)


def answers_in_float32(seed: Tensor) -> Tensor:
    """Results are float32, whatever the arguments were."""
    return in_every_dtype(seed, wrap=_float32_results)


def crashes(seed: Tensor) -> Tensor:
    """What is not taken ends in an error of the machine."""
    return in_every_dtype(seed, wrap=_crashing)


def says_little(seed: Tensor) -> Tensor:
    """A refusal that leaves the caller guessing."""
    return in_every_dtype(seed, wrap=_curt)


def promises_too_much(seed: Tensor) -> Tensor:
    """A refusal that sends the caller to a dtype that is refused too."""
    return in_every_dtype(seed, wrap=_promising)


def mixes_silently(seed: Tensor) -> Tensor:
    """An argument of another dtype than the rest is cast to theirs."""
    return in_mixed_dtypes(seed, wrap=_casting)


def mixed_answers_in_float32(seed: Tensor) -> Tensor:
    """Results are float32, whatever the only floating argument was."""
    return in_mixed_dtypes(seed, wrap=_float32_results)
