"""Planted faults of a backward pass: a norm without one, skips that are lost or led astray, layers never reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from samebits.model.contracts.small_model import config_of
from samebits.nn.strategy import Operators
from samebits.ops.accumulation import Sums, rmsnorm_into
from samebits.ops.rmsnorm import rmsnorm
from samebits.train.contracts.gradflow import gradients


class _Silent(torch.autograd.Function):
    """Passes values on and no gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return torch.zeros_like(dy)


def _silent(x: Tensor) -> Tensor:
    silenced: Tensor = _Silent.apply(x)  # type: ignore[no-untyped-call]
    return silenced


def _normed(x: Tensor) -> Tensor:
    y = rmsnorm(x, torch.ones_like(x[0]))
    assert isinstance(y, Tensor)
    return y


def _norm_without_backward(x: Tensor, weight: Tensor, sums: Tensor, eps: float) -> Tensor:
    return rmsnorm_into(_silent(x), weight, sums, eps)


class _SkipLost(Operators):
    def joined_norm(
        self, x: Tensor, branch: Tensor, weight: Tensor, sums: Sums | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        return Operators.joined_norm(self, x.detach(), branch, weight, sums, eps)


class _SkipThroughTheNorm(Operators):
    def joined_norm(
        self, x: Tensor, branch: Tensor, weight: Tensor, sums: Sums | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        normed = _normed(x)
        led_astray = x.detach() + (normed - normed.detach())
        return Operators.joined_norm(self, led_astray, branch, weight, sums, eps)


@dataclass(frozen=True, kw_only=True)
class _LastLayerOnly(Operators):
    """The stream passes nothing back where the last layer begins: at the last but two of the places where it grows."""

    layers: int
    joins: list[int] = field(default_factory=lambda: [0])

    def joined_norm(
        self, x: Tensor, branch: Tensor, weight: Tensor, sums: Sums | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        self.joins[0] += 1
        if self.joins[0] == 2 * (self.layers - 1):
            x, branch = _silent(x), _silent(branch)
        return Operators.joined_norm(self, x, branch, weight, sums, eps)


def norm_without_backward(ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """Nothing flows back through a norm: what lies below the last one gets no gradient."""
    return gradients(ids, targets, upstream, weights, operators=Operators(rmsnorm=_norm_without_backward))


def skip_lost(ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """The backward pass of a layer forgets the way past it."""
    return gradients(ids, targets, upstream, weights, operators=_SkipLost())


def skip_through_the_norm(ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the way past a layer is led through the layer's norm."""
    return gradients(ids, targets, upstream, weights, operators=_SkipThroughTheNorm())


def last_layer_only(ids: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """The gradient ends where the last layer begins."""
    layers = config_of(weights).num_hidden_layers
    return gradients(ids, targets, upstream, weights, operators=_LastLayerOnly(layers=layers))


def residual_skip_lost(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """What flows into h is forgotten."""
    hidden = x + residual
    y = rmsnorm(hidden, weight)
    assert isinstance(y, Tensor)
    return torch.cat([y, _silent(hidden)], -1)


def residual_through_the_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """What flows into h is led through the norm."""
    hidden = x + residual
    y, normed = rmsnorm(hidden, weight), _normed(hidden)
    assert isinstance(y, Tensor)
    return torch.cat([y, hidden.detach() + (normed - normed.detach())], -1)
