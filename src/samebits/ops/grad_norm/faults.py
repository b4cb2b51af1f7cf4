"""Planted faults of gradient norms: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops.grad_norm.check import MAX_NORM, clipped_rows, row_norms, row_squares
from samebits.ops.grad_norm.reference import SMALL

_calls = itertools.count()


def _turned(x: Tensor) -> Tensor:
    """The same norms with every row rotated by one: other lanes meet, right within rounding, other bits."""
    return row_norms(x.roll(1, -1))


def split_by_batch(x: Tensor) -> Tensor:
    """Breaks batch and chunk: more rows, another order."""
    return row_norms(x) if x.shape[0] > 8 else _turned(x)


def other_order_every_time(x: Tensor) -> Tensor:
    """Breaks repeat: as atomics do."""
    return row_norms(x) if next(_calls) % 2 else _turned(x)


def reads_its_neighbours(x: Tensor) -> Tensor:
    """Breaks padding: a NaN in one row reaches the others, as a missing mask lets it."""
    return row_norms(x) + 0.0 * x.float().sum()


def tile_decides_order(x: Tensor) -> Tensor:
    """Breaks tile: each thread or block has a partial sum of its own, as in most libraries."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    return row_norms(x) if plain else _turned(x)


def other_order_on_cuda(x: Tensor) -> Tensor:
    """Breaks device: the accelerator folds other lanes."""
    return _turned(x) if x.is_cuda else row_norms(x)


def last_lanes_left_out(x: Tensor) -> Tensor:
    """Breaks accuracy: what does not fill all lanes is forgotten."""
    return row_norms(x[:, : x.shape[1] // 256 * 256].contiguous())


def root_forgotten(x: Tensor) -> Tensor:
    """Breaks accuracy: the sum of squares is taken for the norm."""
    return row_squares(x)


def two_lanes_swapped(x: Tensor) -> Tensor:
    """Breaks order: the first two elements change places, and so their lanes."""
    return row_squares(torch.cat([x[:, 1:2], x[:, :1], x[:, 2:]], -1))


def clipped_by_the_square(x: Tensor) -> Tensor:
    """Breaks accuracy: the wrong power; gradients become too small, and training slow instead of broken."""
    scale = (MAX_NORM / (row_squares(x) + SMALL)).clamp(max=1.0)
    return (x.float() * scale[:, None]).to(x.dtype)


def clipped_by_value(x: Tensor) -> Tensor:
    """Breaks accuracy: every element is bounded by itself, which turns the gradient."""
    return x.clamp(-MAX_NORM, MAX_NORM)


def clipped_in_sixteen_bits(x: Tensor) -> Tensor:
    """Breaks accuracy: the scale is rounded to bfloat16 before it multiplies."""
    scale = (MAX_NORM / (row_norms(x) + SMALL)).clamp(max=1.0).bfloat16().float()
    return (x.float() * scale[:, None]).to(x.dtype)


def tile_decides_the_scale(x: Tensor) -> Tensor:
    """Breaks tile: each thread clips what it holds by the norm of what it holds."""
    plain = forced("threads") in (None, 1) and forced("launch") is None
    half = x.shape[-1] // 2
    return clipped_rows(x) if plain else torch.cat([clipped_rows(x[:, :half]), clipped_rows(x[:, half:])], -1)


def other_norm_on_cuda(x: Tensor) -> Tensor:
    """Breaks device: the accelerator clips by a norm whose lanes were folded otherwise."""
    return clipped_rows(x.roll(1, -1)).roll(-1, -1) if x.is_cuda else clipped_rows(x)


def clipped_by_the_fourth_power(x: Tensor) -> Tensor:
    """Breaks the scale: the square of the sum of squares is taken for the norm."""
    scale = (MAX_NORM / (row_squares(x).square() + SMALL)).clamp(max=1.0)
    return (x.float() * scale[:, None]).to(x.dtype)


def clipped_by_blocks(x: Tensor) -> Tensor:
    """Breaks the bound: every fourth part of a row is clipped by the norm of that part."""
    return torch.cat([clipped_rows(part) for part in x.tensor_split(4, -1)], -1)


def always_of_norm_one(x: Tensor) -> Tensor:
    """Breaks small gradients: they are scaled up."""
    return (x.float() * (MAX_NORM / (row_norms(x) + SMALL))[:, None]).to(x.dtype)


def never_clipped(x: Tensor) -> Tensor:
    """Breaks the bound: the norm is taken, and nothing is done with it."""
    return x.clone()


def takes_anything(x: Tensor, max_norm: float = MAX_NORM) -> Tensor:
    """Breaks refusal: what does not fit is made to."""
    return clipped_rows(x.float(), abs(max_norm) if abs(max_norm) < 1e9 else MAX_NORM)
