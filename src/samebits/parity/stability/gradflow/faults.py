"""Planted faults of a backward pass: a norm without one, skips that are lost or led astray, layers never reached."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.ops.accumulation import rmsnorm_into
from samebits.ops.rmsnorm import rmsnorm
from samebits.parity.chain import Chain, Operators
from samebits.parity.stability.gradflow import gradients


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


def _norm_without_backward(x: Tensor, weight: Tensor, sums: Tensor) -> Tensor:
    return rmsnorm_into(_silent(x), weight, sums)


class _SkipLost(Chain):
    def _layer(self, layer: int, x: Tensor, positions: Tensor, options: dict[str, object]) -> Tensor:
        return super()._layer(layer, x, positions, options) - x + x.detach()


class _SkipThroughTheNorm(Chain):
    def _layer(self, layer: int, x: Tensor, positions: Tensor, options: dict[str, object]) -> Tensor:
        normed = _normed(x)
        return super()._layer(layer, x, positions, options) - (x - x.detach()) + (normed - normed.detach())


class _LastLayerOnly(Chain):
    def _layer(self, layer: int, x: Tensor, positions: Tensor, options: dict[str, object]) -> Tensor:
        last = layer == self.sizes.layers - 1
        return super()._layer(layer, _silent(x) if last else x, positions, options)


def norm_without_backward(hidden: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """Nothing flows back through a norm: what lies below the last one gets no gradient."""
    return gradients(hidden, targets, upstream, weights, operators=Operators(rmsnorm=_norm_without_backward))


def skip_lost(hidden: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """The backward pass of a layer forgets the way past it."""
    return gradients(hidden, targets, upstream, weights, kind=_SkipLost)


def skip_through_the_norm(hidden: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the way past a layer is led through the layer's norm."""
    return gradients(hidden, targets, upstream, weights, kind=_SkipThroughTheNorm)


def last_layer_only(hidden: Tensor, targets: Tensor, upstream: Tensor, weights: Tensor) -> Tensor:
    """The gradient ends where the last layer begins."""
    return gradients(hidden, targets, upstream, weights, kind=_LastLayerOnly)


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
