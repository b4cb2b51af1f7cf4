"""Sizes by the layout of a block, numbers in float64, the nearest code in float64, and patterns as they are."""

from __future__ import annotations

import torch
from torch import Tensor

# Of 32 numbers: a scale of two bytes, a minimum of two, codes of four or eight bits. As KINDS has them.
BLOCK_BYTES = (2 + 16, 2 + 2 + 16, 2 + 32)
GROUP = 32
LEAST = (-8, 0, -127, -8)
MOST = (7, 15, 127, 7)
WITH_MINIMUM = 1
SYMMETRIC = 2


def stored64(weight: Tensor, kind: Tensor) -> int:
    """The bytes of a row."""
    return weight.shape[1] // GROUP * BLOCK_BYTES[int(kind) % len(BLOCK_BYTES)]


def numbers64(codes: Tensor, scale: Tensor, minimum: Tensor, kind: Tensor) -> Tensor:
    """code times scale, plus the minimum where the format has one."""
    wide = codes.double().reshape(len(codes), -1, GROUP) * scale.double()[..., None]
    if int(kind) == WITH_MINIMUM:
        wide = wide + minimum.double()[..., None]
    return wide.reshape(codes.shape)


def returned64(weight: Tensor, kind: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(N, K) each: what may be lost to the codes, the largest magnitude a code stands for, and the minimum.

    Half a step; where the format has no code on one side, all that is beyond the last one."""
    x, place = weight.double().reshape(len(weight), -1, GROUP), int(kind)
    least = x.amin(-1, keepdim=True)
    if place == WITH_MINIMUM:
        step, offset = (x.amax(-1, keepdim=True) - least) / MOST[place], least
    elif place == SYMMETRIC:
        step, offset = x.abs().amax(-1, keepdim=True) / MOST[place], torch.zeros_like(least)
    else:
        at = x.abs().argmax(-1, keepdim=True)
        step, offset = x.gather(-1, at) / LEAST[place], torch.zeros_like(least)
    beyond = ((x - offset) * step.sign() - MOST[place] * step.abs()).clamp(min=0)
    lost = torch.maximum(step.abs().expand(x.shape) / 2, beyond)
    most = (max(-LEAST[place], MOST[place]) * step.abs()).expand(x.shape)
    return tuple(each.reshape(weight.shape) for each in (lost, most, offset.expand(x.shape)))  # type: ignore[return-value]


def there_and_back64(patterns: Tensor) -> Tensor:
    """What went in."""
    return patterns
