"""Planted: rotations that misbehave somewhere."""

from __future__ import annotations

import torch
from torch import Tensor

_tables: dict[int, Tensor] = {}
_frequencies: dict[int, Tensor] = {}


def _angles(positions: Tensor, half: int) -> Tensor:
    """One angle at a time, in float64: a row's own business."""
    frequencies = torch.tensor([10000.0 ** (-place / half) for place in range(half)], dtype=torch.float64)
    return positions.double()[:, None, None] * frequencies


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.double().chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(x.dtype)


def table_that_grows(x: Tensor, positions: Tensor) -> Tensor:
    """New cosines and sines are old ones, rounded, turned on: by how far depends on what was asked for before."""
    half, size = x.shape[-1] // 2, int(positions.max()) + 1
    table = _tables.get(half)
    if table is None:
        start = _angles(torch.arange(64), half)[:, 0]
        table = torch.polar(torch.ones_like(start), start).to(torch.complex64)
    while len(table) < size:
        length = len(table)
        step = _angles(torch.tensor([length]), half)[0]
        turned = table[: size - length] * torch.polar(torch.ones_like(step), step).to(torch.complex64)
        table = torch.cat([table, turned])
    _tables[half] = table
    angles = table[positions.long()][:, None]
    return _turned(x, angles.real.double(), angles.imag.double())


def frequencies_of_the_first_theta(x: Tensor, positions: Tensor, theta: float = 10000.0) -> Tensor:
    """A second model in the process, with another theta, gets the first one's frequencies."""
    half = x.shape[-1] // 2
    if half not in _frequencies:
        powers = [theta ** (-place / half) for place in range(half)]
        _frequencies[half] = torch.tensor(powers, dtype=torch.float64)
    angles = positions.double()[:, None, None] * _frequencies[half]
    return _turned(x, angles.cos(), angles.sin())


def positions_in_the_format(x: Tensor, positions: Tensor) -> Tensor:
    """Whole numbers above 256 are not all bfloat16s."""
    angles = _angles(positions.to(x.dtype), x.shape[-1] // 2)
    return _turned(x, angles.cos(), angles.sin())


def hands_out_its_input_at_the_start(x: Tensor, positions: Tensor) -> Tensor:
    if not bool(positions.any()):
        return x
    angles = _angles(positions, x.shape[-1] // 2)
    return _turned(x, angles.cos(), angles.sin())
