"""Launches of the kernels that stand in for torch's own operations: rotations by given angles, sums along rows.

What a launch hands over is written here as the functions beside the kernels have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from samebits.invariant import triton_rotation, triton_sums
from samebits.train.contracts.launch_indices.deciding import Launch
from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Anything, Buffer, Number

ELEMENTS_BELOW: Final = 2**62


def _in_turn(m: Machine, *_: Any) -> Anything:
    """It halves its terms until one is left: numbers alone."""
    return Anything(m)


def _chains_along_rows(m: Machine) -> None:
    """Rows of K terms side by side, a stride apart."""
    m.summaries = SUMMARIES
    M, K = m.sizes("M K")
    ROWS, COUNT = m.numbers("ROWS COUNT", below=2**10)
    stride = m.unknown(0, ELEMENTS_BELOW, 64, "stride")
    length = (M.to(64) - 1) * stride + K
    m.assume(length < ELEMENTS_BELOW)
    m.call(
        triton_sums.chains_along_rows,
        program=m.unknown(0, m.cdiv(M, ROWS)),
        sums_ptr=Buffer("sums", M),
        x_ptr=Buffer("x", length),
        M=M,
        K=K,
        stride=stride,
        RESUMED=m.either(),
        ALIGNED=m.either(),
        ROWS=ROWS,
        COUNT=COUNT,
    )


def _rotate(m: Machine) -> None:
    """x and y (B, H, S, 2 half) with strides of their own, angles (B or 1, S, 2 half)."""
    B, H, S, half = m.sizes("B H S half", below=2**30)
    HEADS, HALF = m.numbers("HEADS HALF")
    aligned = m.either()
    m.assume(half <= HALF, *([half % 8 == 0] if aligned else []))
    buffers: dict[str, Buffer] = {}
    strides: dict[str, Number] = {}
    for name in ("x", "y"):
        batch, head, token = (m.unknown(0, ELEMENTS_BELOW, 64, f"{name}_{axis}") for axis in ("batch", "head", "token"))
        length = (B.to(64) - 1) * batch + (H.to(64) - 1) * head + (S.to(64) - 1) * token + 2 * half
        m.assume(length < ELEMENTS_BELOW)
        buffers[f"{name}_ptr"] = Buffer(name, length)
        strides |= {f"{name}_batch": batch, f"{name}_head": head, f"{name}_token": token}
    angles = m.unknown(0, ELEMENTS_BELOW, 64, "angle_batch") if m.either() else m.unknown(0, 1, 64, "angle_batch")
    token = m.unknown(0, ELEMENTS_BELOW, 64, "angle_token")
    length = (B.to(64) - 1) * angles + (S.to(64) - 1) * token + 2 * half
    m.assume(length < ELEMENTS_BELOW)
    heads = m.cdiv(H, HEADS)
    place = m.joined(m.unknown(0, B), S, m.unknown(0, S))
    m.call(
        triton_rotation.rotate,
        program=m.joined(place, heads, m.unknown(0, heads)),
        **buffers,
        cos_ptr=Buffer("cos", length),
        sin_ptr=Buffer("sin", length),
        S=S,
        H=H,
        half=half,
        **strides,
        angle_batch=angles,
        angle_token=token,
        BACK=m.either(),
        ALIGNED=aligned,
        HEADS=HEADS,
        HALF=HALF,
    )


KERNELS: Final[dict[str, Launch]] = {"chains_along_rows": _chains_along_rows, "rotate": _rotate}
SUMMARIES: Final[dict[str, Callable[..., Any]]] = {"triton_sums.in_turn": _in_turn}
