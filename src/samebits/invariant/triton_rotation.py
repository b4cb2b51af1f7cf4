"""Rotation of queries and keys by given angles, by Triton: every number is rounded where torch's operations round it.

A number and its partner half a head away give two numbers: nothing is added up that has an order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run

NUMBERS_OF_A_PROGRAM = 2048
ALIGNMENT = 16
_INTEGERS = [
    "S",
    "H",
    "half",
    "x_batch",
    "x_head",
    "x_token",
    "y_batch",
    "y_head",
    "y_token",
    "angle_batch",
    "angle_token",
]


@triton.jit
def at(pointer, rows, columns, ALIGNED: tl.constexpr):
    pointers = pointer + rows + columns
    return tl.multiple_of(pointers, (1, 16)) if ALIGNED else pointers


@triton.jit
def rounded_product(a, b):
    return (a.to(tl.float32) * b.to(tl.float32)).to(a.dtype).to(tl.float32)


@triton.jit(do_not_specialize=_INTEGERS, do_not_specialize_on_alignment=["x_ptr", "cos_ptr", "sin_ptr", "y_ptr"])
def rotate(
    x_ptr,
    cos_ptr,
    sin_ptr,
    y_ptr,
    S: tl.int32,
    H: tl.int32,
    half: tl.int32,
    x_batch: tl.int64,
    x_head: tl.int64,
    x_token: tl.int64,
    y_batch: tl.int64,
    y_head: tl.int64,
    y_token: tl.int64,
    angle_batch: tl.int64,
    angle_token: tl.int64,
    BACK: tl.constexpr,
    ALIGNED: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """A token's heads: y = x cos + (-x2, x1) sin, or, BACK, the gradient that flows into x where x is that of y."""
    token, first = tl.program_id(0) // tl.cdiv(H, HEADS), tl.program_id(0) % tl.cdiv(H, HEADS)
    batch, place = (token // S).to(tl.int64), (token % S).to(tl.int64)
    heads, columns = first * HEADS + tl.arange(0, HEADS), tl.arange(0, HALF)[None, :]
    length = half // 8 * 8 if ALIGNED else half  # the same number, and so read eight at a time
    inside, within = (heads < H)[:, None] & (columns < length), columns < length
    x_rows = (batch * x_batch + place * x_token + heads.to(tl.int64) * x_head)[:, None]
    y_rows = (batch * y_batch + place * y_token + heads.to(tl.int64) * y_head)[:, None]
    angles = batch * angle_batch + place * angle_token
    x1 = tl.load(at(x_ptr, x_rows, columns, ALIGNED), mask=inside, other=0.0)
    x2 = tl.load(at(x_ptr, x_rows + half, columns, ALIGNED), mask=inside, other=0.0)
    cos1 = tl.load(at(cos_ptr, angles, columns, ALIGNED), mask=within, other=0.0)
    cos2 = tl.load(at(cos_ptr, angles + half, columns, ALIGNED), mask=within, other=0.0)
    sin1 = tl.load(at(sin_ptr, angles, columns, ALIGNED), mask=within, other=0.0)
    sin2 = tl.load(at(sin_ptr, angles + half, columns, ALIGNED), mask=within, other=0.0)
    if BACK:
        y1 = rounded_product(x1, cos1) + rounded_product(x2, sin2)
        y2 = rounded_product(x2, cos2) - rounded_product(x1, sin1)
    else:
        y1 = rounded_product(x1, cos1) - rounded_product(x2, sin1)
        y2 = rounded_product(x2, cos2) + rounded_product(x1, sin2)
    kind = y_ptr.dtype.element_ty
    tl.store(at(y_ptr, y_rows, columns, ALIGNED), y1.to(kind), mask=inside)
    tl.store(at(y_ptr, y_rows + half, columns, ALIGNED), y2.to(kind), mask=inside)


def rotated(x_BHSD: Tensor, cos_BSD: Tensor, sin_BSD: Tensor, *, back: bool = False) -> Tensor:
    """In x's own layout. The numbers of a head lie side by side, in x and in the angles, whose batch may be one."""
    (B, H, S, D) = x_BHSD.shape
    half = D // 2
    y = torch.empty_like(x_BHSD)
    angle_batch = cos_BSD.stride(0) if cos_BSD.shape[0] > 1 else 0
    strides = (*x_BHSD.stride()[:3], *y.stride()[:3], angle_batch, cos_BSD.stride(1))
    tensors = (x_BHSD, cos_BSD, sin_BSD, y)
    steps = (*strides, half)
    aligned = all(each.data_ptr() % ALIGNMENT == 0 for each in tensors) and all(
        step * x_BHSD.element_size() % ALIGNMENT == 0 for step in steps
    )
    columns = triton.next_power_of_2(half)
    heads = min(triton.next_power_of_2(H), max(1, NUMBERS_OF_A_PROGRAM // columns))
    with on_device(x_BHSD):
        run(
            rotate,
            B * S * -(-H // heads),
            (*tensors, S, H, half, *strides),
            warps=4,
            stages=1,
            BACK=back,
            ALIGNED=aligned,
            HEADS=heads,
            HALF=columns,
        )
    return y
