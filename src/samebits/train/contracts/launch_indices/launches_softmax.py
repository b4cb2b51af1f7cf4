"""Launches of softmax's kernels: their sizes, their buffers, and which programs there are.

What a launch hands over is written here as ops/softmax/triton_kernel.py has it. Steps and blocks are those that
launches have: products of a number that is not known and a counter are too much for z3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from samebits.ops.softmax import triton_backward, triton_forward, triton_shared
from samebits.ops.softmax.triton_kernel import ALONE, LANES, PARTS, TOGETHER
from samebits.train.contracts.launch_indices.deciding import Launch
from samebits.train.contracts.launch_indices.handed import aligned
from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Buffer, Number

STEPS: Final = (1, 2, 4, 8, 16)
# Of a row whose lanes several programs add: the last step ends less than 2^14 columns behind it.
LONGEST: Final = 2**31 - 2**14


def _rows(kernel: Any, of: tuple[str, ...]) -> Launch:
    """Programs over blocks of whole rows."""

    def launch(m: Machine) -> None:
        M, H = m.sizes("M H")
        (ROWS,) = m.numbers("ROWS")
        m.call(
            kernel,
            program=m.unknown(0, m.cdiv(M, ROWS)),
            **{f"{name}_ptr": Buffer(name, M.to(64) * H) for name in of},
            M=M,
            H=H,
            LOGARITHM=m.either(),
            ROWS=ROWS,
            STEPS=m.one_of(*STEPS),
            ALIGNED=aligned(m, H),
        )

    return launch


def _shared(m: Machine) -> tuple[Number, Number, Number, Mapping[str, Any]]:
    """Rows and columns, the blocks of a part, and the program: one of PARTS a row."""
    M, H = m.sizes("M H", below=LONGEST)
    m.assume(M < 2**26)
    blocks = m.cdiv(m.cdiv(H, ALONE.block), PARTS)
    program = m.joined(m.unknown(0, M), PARTS, m.unknown(0, PARTS))
    common = {"H": H, "blocks": blocks, "PARTS": PARTS, "BLOCK": ALONE.block, "ALIGNED": aligned(m, H)}
    return M, H, program, common


def _maxima(m: Machine) -> None:
    M, H, program, common = _shared(m)
    buffers = {"x_ptr": Buffer("x", M.to(64) * H), "maxima_ptr": Buffer("maxima", M.to(64) * PARTS)}
    m.call(triton_shared.softmax_maxima, program=program, **buffers, **common)


def _row(m: Machine, M: Number, H: Number, wide: bool) -> Number:
    """One of M rows of H columns. That it lies among them is shown first, and then known: its terms are few here."""
    row = m.unknown(0, M)
    for length in (H // 8, H) if wide else (H,):
        for fact in (row.to(64) * length >= 0, row.to(64) * length + length <= M.to(64) * length):
            m.must(fact)
            m.assume(fact)
    return row


def _lanes(m: Machine) -> None:
    """The last row comes first."""
    M, H = m.sizes("M H", below=LONGEST)
    m.assume(M < 2**26)
    lanes, wide = m.one_of(ALONE.lanes, TOGETHER.lanes), aligned(m, H)
    programs = LANES // lanes
    m.call(
        triton_shared.softmax_lanes,
        program=m.joined(M - 1 - _row(m, M, H, wide), programs, m.unknown(0, programs)),
        x_ptr=Buffer("x", M.to(64) * H),
        maxima_ptr=Buffer("maxima", M.to(64) * PARTS),
        lanes_ptr=Buffer("lanes", M.to(64) * LANES),
        M=M,
        H=H,
        PARTS=PARTS,
        STEPS=ALONE.steps,
        LANES=lanes,
        ALIGNED=wide,
    )


def _results(m: Machine) -> None:
    M, H, program, common = _shared(m)
    m.call(
        triton_shared.softmax_results,
        program=program,
        x_ptr=Buffer("x", M.to(64) * H),
        y_ptr=Buffer("y", M.to(64) * H),
        maxima_ptr=Buffer("maxima", M.to(64) * PARTS),
        lanes_ptr=Buffer("lanes", M.to(64) * LANES),
        LOGARITHM=m.either(),
        **common,
    )


KERNELS: Final[dict[str, Launch]] = {
    "softmax_forward": _rows(triton_forward.softmax_forward, ("x", "y")),
    "softmax_backward": _rows(triton_backward.softmax_backward, ("dy", "y", "dx")),
    "softmax_maxima": _maxima,
    "softmax_lanes": _lanes,
    "softmax_results": _results,
}
