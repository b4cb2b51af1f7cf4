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
from samebits.train.contracts.launch_indices.values import Anything, Buffer, Number

STEPS: Final = (1, 2, 4, 8, 16)
# Of a row whose lanes several programs add: the last step ends less than 2^14 columns behind it.
LONGEST: Final = 2**31 - 2**14


def _columns_of(m: Machine, lane: Number, steps: int, lanes: int) -> Number:
    """Any of the steps: that lanes end with the last is shown. Three unknowns would keep z3 busy for a minute."""
    m.must(lane >= 0)
    m.must(lane + lanes <= LANES)
    return m.unknown(0, LANES * steps)


SUMMARIES: Final[Mapping[str, Any]] = {
    # Numbers alone, and no address.
    "exponential.exp_up_to_zero": lambda m, _: Anything(m),
    "triton_shared.columns_of": _columns_of,
}


def _rows(kernel: Any, of: tuple[str, ...]) -> Launch:
    """Programs over blocks of whole rows."""

    def launch(m: Machine) -> None:
        m.summaries = SUMMARIES
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
    m.summaries = SUMMARIES
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


def _lanes(m: Machine) -> None:
    """The last row comes first."""
    m.summaries = SUMMARIES
    M, H = m.sizes("M H", below=LONGEST)
    m.assume(M < 2**26)
    lanes = m.one_of(ALONE.lanes, TOGETHER.lanes)
    programs = LANES // lanes
    m.call(
        triton_shared.softmax_lanes,
        program=m.joined(M - 1 - m.unknown(0, M), programs, m.unknown(0, programs)),
        x_ptr=Buffer("x", M.to(64) * H),
        maxima_ptr=Buffer("maxima", M.to(64) * PARTS),
        lanes_ptr=Buffer("lanes", M.to(64) * LANES),
        M=M,
        H=H,
        PARTS=PARTS,
        STEPS=ALONE.steps,
        LANES=lanes,
        ALIGNED=aligned(m, H),
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
