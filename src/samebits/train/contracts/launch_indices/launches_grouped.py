"""Launches of the grouped product: blocks of rows of one expert each, and the tiles of every expert's gradient.

What a launch hands over is written here as the functions beside the kernels have it."""

from __future__ import annotations

from typing import Any, Final

from samebits.ops.grouped_matmul import triton_dweight
from samebits.ops.grouped_matmul import triton_kernel as grouped
from samebits.train.contracts.launch_indices.deciding import Launch
from samebits.train.contracts.launch_indices.handed import within
from samebits.train.contracts.launch_indices.launches_products import (
    SUMMARIES,
    TILES_BELOW,
    contiguous,
    dtype_of,
    spanned,
    strides,
    tiles_of,
)
from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Anything, Buffer, Number


def _grouped(m: Machine) -> tuple[dict[str, Any], Number]:
    """The table of blocks: its expert, or as many as there are where it has none, and the place of its first row."""
    M, T, E, K, N = m.sizes("M T E K N")
    TILE_M, TILE_N, TILE_K = m.numbers("TILE_M TILE_N TILE_K")
    tiles = T * m.cdiv(N, TILE_N)
    m.assume(tiles < TILES_BELOW)
    m.summaries = SUMMARIES
    return {
        "program": m.unknown(0, tiles),
        "rows_ptr": Buffer("rows", M, within(0, M)) if m.either() else None,
        "ends_ptr": Buffer("ends", E, within(0, M + 1)),
        "experts_ptr": Buffer("experts", T, within(0, E + 1)),
        "places_ptr": Buffer("places", T, within(0, M.to(64) + 2**12)),
        "y_ptr": Buffer("y", M.to(64) * N),
        "T": T,
        "E": E,
        "K": K,
        "N": N,
        "TILE_M": TILE_M,
        "TILE_N": TILE_N,
        "TILE_K": TILE_K,
        "GROUP": m.numbers("GROUP")[0],
    }, M


def _grouped_addressed(m: Machine) -> None:
    given, M = _grouped(m)
    E, K, N = given["E"], given["K"], given["N"]
    xm, xk, we, wk, wn = strides(m, "stride_xm stride_xk stride_we stride_wk stride_wn")
    dtype = dtype_of(m)
    m.call(
        grouped.grouped_addressed,
        x_ptr=Buffer("x", spanned(m, (M, xm), (K, xk)), dtype=dtype),
        weight_ptr=Buffer("weight", spanned(m, (E, we), (K, wk), (N, wn)), dtype=dtype),
        **given,
        stride_xm=xm,
        stride_xk=xk,
        stride_we=we,
        stride_wk=wk,
        stride_wn=wn,
        **contiguous(m, ("X_CONTIGUOUS", "W_CONTIGUOUS"), (xm, xk), (wn, wk)),
    )


def _grouped_described(m: Machine) -> None:
    given, _ = _grouped(m)
    m.call(grouped.grouped_described, x=Anything(m), weight=Anything(m), **given, W_TRANSPOSED=m.either())


def _dweight(m: Machine) -> tuple[dict[str, Any], Number]:
    M, E, K, N = m.sizes("M E K N")
    TILE_M, TILE_N, TILE_K = m.numbers("TILE_M TILE_N TILE_K")
    tiles = tiles_of(m, K, N, TILE_M, TILE_N)
    resumed, out = m.either(), Buffer("out", E.to(64) * K * N)
    m.assume(E.to(64) * K < 2**31)
    return {
        "program": m.joined(m.unknown(0, E), tiles, m.unknown(0, tiles)),
        "ends_ptr": Buffer("ends", E, within(0, M + 1)),
        "out_ptr": None if resumed else out,
        "accumulator_ptr": out if resumed else None,
        "K": K,
        "N": N,
        "TILE_M": TILE_M,
        "TILE_N": TILE_N,
        "TILE_K": TILE_K,
        "GROUP": m.numbers("GROUP")[0],
    }, M


def _dweight_described(m: Machine) -> None:
    given, _ = _dweight(m)
    m.call(triton_dweight.grouped_dweight_described, x=Anything(m), dy=Anything(m), **given)


def _dweight_addressed(m: Machine) -> None:
    given, M = _dweight(m)
    xm, xk, dm, dn = strides(m, "stride_xm stride_xk stride_dm stride_dn")
    dtype = dtype_of(m)
    m.call(
        triton_dweight.grouped_dweight_addressed,
        x_ptr=Buffer("x", spanned(m, (M, xm), (given["K"], xk)), dtype=dtype),
        dy_ptr=Buffer("dy", spanned(m, (M, dm), (given["N"], dn)), dtype=dtype),
        **given,
        stride_xm=xm,
        stride_xk=xk,
        stride_dm=dm,
        stride_dn=dn,
        **contiguous(m, ("X_CONTIGUOUS", "DY_CONTIGUOUS"), (xk, xm), (dn, dm)),
    )


KERNELS: Final[dict[str, Launch]] = {
    "grouped_addressed": _grouped_addressed,
    "grouped_described": _grouped_described,
    "grouped_dweight_described": _dweight_described,
    "grouped_dweight_addressed": _dweight_addressed,
}
