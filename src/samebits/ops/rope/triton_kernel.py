"""Rotary position embedding by Triton: a program computes its token's sines and cosines once and turns all its heads.

Knows nothing of autograd, validation or empty tensors; the public function does. Pairs, heads and warps decide speed
alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.numerics.elementary.triton_generated import cos, sin
from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import pointers_at
from samebits.ops._triton.sizes import cdiv, next_power_of_2

# M tokens, H heads, P pairs a head.


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeLaunch:
    """Decides speed, never bits."""

    pairs: int = 64
    """Pairs of a program."""
    heads: int = 16
    """Heads turned at a time."""
    warps: int = 1
    """Each warp computes sines and cosines of its own, so more of them do the same work again."""


@triton.jit
def cosine_and_sine(
    positions_ptr, frequencies_ptr, token, pairs, P, factor, SCALED: tl.constexpr, OPPOSITE: tl.constexpr
):
    """Of position * frequency, each times factor; the sine with its sign turned for the opposite angle."""
    position = tl.load(positions_ptr + token).to(tl.float32)
    phase = position * tl.load(frequencies_ptr + pairs, mask=pairs < P, other=0.0)
    c, s = cos(phase), sin(phase)
    if SCALED:
        c, s = c * factor, s * factor
    if OPPOSITE:
        s = s * -1.0
    return c[None, :], s[None, :]


@triton.jit(
    do_not_specialize=["H", "P", "factor"],
    do_not_specialize_on_alignment=["x_ptr", "positions_ptr", "frequencies_ptr", "y_ptr"],
)
def rope_rotate(
    x_ptr,
    positions_ptr,
    frequencies_ptr,
    y_ptr,
    H: tl.int32,
    P: tl.int32,
    factor: tl.float32,
    SCALED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    OPPOSITE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """y_a = round(fma(a, c, -(b * s))), y_b = round(fma(b, c, a * s)) for every pair (a, b) of a token."""
    # A multiple of 8 in a form that the compiler can see.
    length = P // 8 * 8 if ALIGNED else P
    blocks = tl.cdiv(P, PAIRS)
    token = (tl.program_id(0) // blocks).to(tl.int64)
    first = tl.program_id(0) % blocks * PAIRS
    pairs = first + tl.arange(0, PAIRS)
    c, s = cosine_and_sine(positions_ptr, frequencies_ptr, token, pairs, P, factor, SCALED, OPPOSITE)
    for start in range(0, H, HEADS):
        heads = start + tl.arange(0, HEADS)
        rows = (token * H + heads)[:, None] * (2 * length)
        if INTERLEAVED:
            columns = 2 * first + tl.arange(0, 2 * PAIRS)
            inside = (heads < H)[:, None] & (columns < 2 * length)[None, :]
            offsets = rows + columns[None, :]
            x = tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
            a, b = tl.split(tl.reshape(x, (HEADS, PAIRS, 2)))
            y = tl.reshape(tl.join(tl.fma(a, c, b * (s * -1.0)), tl.fma(b, c, a * s)), (HEADS, 2 * PAIRS))
            tl.store(pointers_at(y_ptr, offsets, ALIGNED), y.to(y_ptr.dtype.element_ty), mask=inside)
        else:
            inside = (heads < H)[:, None] & (pairs < length)[None, :]
            offsets = rows + pairs[None, :]
            a = tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=inside, other=0.0).to(tl.float32)
            b = tl.load(pointers_at(x_ptr, offsets + length, ALIGNED), mask=inside, other=0.0).to(tl.float32)
            # The product with -s is the product with s, its sign turned; 0 - b * s would not be where that is 0.
            y_a, y_b = tl.fma(a, c, b * (s * -1.0)), tl.fma(b, c, a * s)
            tl.store(pointers_at(y_ptr, offsets, ALIGNED), y_a.to(y_ptr.dtype.element_ty), mask=inside)
            tl.store(pointers_at(y_ptr, offsets + length, ALIGNED), y_b.to(y_ptr.dtype.element_ty), mask=inside)


def _chosen(heads: int, pairs: int) -> RopeLaunch:
    """A whole head where it fits, and no more heads than there are."""
    return forced_launch(RopeLaunch) or RopeLaunch(
        pairs=min(next_power_of_2(max(pairs, 16)), 128), heads=min(next_power_of_2(heads), 16)
    )


def rotate(
    x_MHD: Tensor, positions_M: Tensor, frequencies_P: Tensor, factor: float, interleaved: bool, opposite: bool
) -> Tensor:
    """Every pair turned by its token's position times its frequency, or back again."""
    (tokens, heads, size), y_MHD = x_MHD.shape, torch.empty_like(x_MHD)
    pairs = size // 2
    launch = _chosen(heads, pairs)
    aligned = pairs % 8 == 0 and x_MHD.data_ptr() % 16 == 0 and y_MHD.data_ptr() % 16 == 0
    with on_device(x_MHD):
        run(
            rope_rotate,
            tokens * cdiv(pairs, launch.pairs),
            (x_MHD, positions_M, frequencies_P, y_MHD, heads, pairs, factor),
            warps=launch.warps,
            stages=1,
            SCALED=factor != 1.0,
            INTERLEAVED=interleaved,
            OPPOSITE=opposite,
            ALIGNED=aligned,
            HEADS=launch.heads,
            PAIRS=launch.pairs,
        )
    return y_MHD
