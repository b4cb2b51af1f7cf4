"""Sums along rows of float32 by Triton: one chain an output, from its first term to its last.

The bits of a product with ones, whose tile is nearly all idle for one column. Here a thread has a whole row, so nothing
is exchanged between threads, and by Gluon, whose layouts say who holds what, no order is left to a compiler."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run

THREADS = 32
FEW_ROWS = 16384
"""Up to here a multiprocessor has too few threads to hide its memory's delay behind, and each has more under way."""
STEP, STEP_OF_FEW = 32, 64
"""Terms that a thread has under way while it adds as many others."""
ALIGNMENT = 16


@gluon.jit
def in_turn(sums, terms, COUNT: gl.constexpr, ROWS: gl.constexpr):
    """sums (ROWS) plus the columns of terms (ROWS, COUNT), one after the other: those of the first half first."""
    if COUNT == 1:
        return sums + gl.convert_layout(terms.reshape([ROWS]), sums.type.layout)
    else:
        first, second = terms.reshape([ROWS, 2, COUNT // 2]).permute((0, 2, 1)).split()
        sums = in_turn(sums, first, COUNT // 2, ROWS)
        return in_turn(sums, second, COUNT // 2, ROWS)


_NUMBERS = ["M", "K", "stride"]


@gluon.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=["sums_ptr", "x_ptr"])
def chains_along_rows(
    sums_ptr, x_ptr, M, K, stride, RESUMED: gl.constexpr, ALIGNED: gl.constexpr, ROWS: gl.constexpr, COUNT: gl.constexpr
):
    layout: gl.constexpr = gl.BlockedLayout([1, COUNT], [ROWS, 1], [1, 1], [1, 0])
    rows = gl.program_id(0) * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, COUNT, layout=gl.SliceLayout(0, layout))
    is_row = rows < M
    if RESUMED:
        sums = gl.load(sums_ptr + rows, mask=is_row, other=0.0)
    else:
        sums = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout))
    pointers = x_ptr + (rows.to(gl.int64) * stride)[:, None] + columns[None, :]
    if ALIGNED:
        pointers = gl.multiple_of(pointers, (16, 16))
    whole = K // COUNT * COUNT
    terms = gl.load(pointers, mask=(is_row & (whole > 0))[:, None], other=0.0)
    for k in range(0, whole, COUNT):
        ahead = pointers + (k + COUNT)
        if ALIGNED:
            ahead = gl.multiple_of(ahead, (16, 16))
        following = gl.load(ahead, mask=(is_row & (k + COUNT < whole))[:, None], other=0.0)
        sums = in_turn(sums, terms, COUNT, ROWS)
        terms = following
    if whole < K:
        # -0 added to any number, either zero included, is that number.
        is_term = is_row[:, None] & (columns < K - whole)[None, :]
        sums = in_turn(sums, gl.load(pointers + whole, mask=is_term, other=-0.0), COUNT, ROWS)
    gl.store(sums_ptr + rows, sums, mask=is_row)


def sums_along_rows(x_MK: Tensor) -> Tensor:
    """(M): the chains of the rows of x, whose terms are contiguous in memory, from +0."""
    sums_M = torch.empty(x_MK.shape[0], dtype=torch.float32, device=x_MK.device)
    _launch(sums_M, x_MK, resumed=False)
    return sums_M


def resume_sums_along_rows(sums_M: Tensor, x_MK: Tensor) -> None:
    """sums <- their chains resumed with the terms of x's rows, which lie one after the other in memory."""
    _launch(sums_M, x_MK, resumed=True)


def _launch(sums_M: Tensor, x_MK: Tensor, *, resumed: bool) -> None:
    (M, K), stride = x_MK.shape, x_MK.stride(0)
    aligned = x_MK.data_ptr() % ALIGNMENT == 0 and stride * x_MK.element_size() % ALIGNMENT == 0
    with on_device(x_MK):
        run(
            chains_along_rows,
            -(-M // THREADS),
            (sums_M, x_MK, M, K, stride),
            warps=1,
            stages=1,
            RESUMED=resumed,
            ALIGNED=aligned,
            ROWS=THREADS,
            COUNT=STEP_OF_FEW if M <= FEW_ROWS else STEP,
        )
