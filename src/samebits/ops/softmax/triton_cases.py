"""What is traced and compiled of softmax by Triton: both functions and their gradients, a row of 600 at a time.

A row is one program's, or several share it: by the launches of the check, and by launches that no other check has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from samebits.contracts.traced import Call, Case, Memory, Outputs, TracedKernels, by_rows, checked, over_rows, result
from samebits.ops._triton.rows import RowLaunch
from samebits.ops.softmax import triton_kernel
from samebits.ops.softmax.check import launches
from samebits.ops.softmax.triton_kernel import ALONE, SharedLaunch

# Three blocks of lanes, the last of them ragged; and a row of sixteen steps and two more.
WIDTH: Final = 600
LONG: Final = 4400
# What is chosen for few rows, and a program that adds all lanes; what is chosen for more is among the check's.
SHARED: Final = (ALONE, SharedLaunch(lanes=256, steps=16, adding=8))
OF_LONG: Final = (RowLaunch(rows=1, columns=1024, warps=4), SharedLaunch(lanes=64, steps=16, block=1024))


def _launches(format: str) -> Sequence[object]:
    return [*checked(launches)(format), *SHARED]


def _forward(logarithm: bool, launch: SharedLaunch | None = None, width: int = WIDTH) -> Call:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        (x,) = by_rows(memory, dtype, x=(m, width))
        return {"y": result(triton_kernel.forward(x, dtype, logarithm, launch=launch))}

    return call


def _backward(logarithm: bool) -> Call:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        dy, y = by_rows(memory, dtype, dy=(m, WIDTH), y=(m, WIDTH))
        return {"dx": result(triton_kernel.backward(dy, y, dtype, logarithm))}

    return call


def _few(words: str, call: Call, launches: Sequence[object]) -> Case:
    """One row and two: a trace of these takes long."""
    return Case(words=words, call=call, batches=(1, 2), rows=lambda m: m, launches=lambda _: launches)


KERNELS = TracedKernels(
    cases=(
        over_rows("softmax of 600", _forward(False), 1, _launches),
        over_rows("log_softmax of 600", _forward(True), 1, _launches),
        # For the planted faults, which are tried with what is chosen: here several programs share a row.
        _few("softmax of 600 by several programs", _forward(False, SHARED[-1]), (None,)),
        _few("softmax of 4400", _forward(False, width=LONG), OF_LONG),
        over_rows("the gradient of softmax", _backward(False), 1, checked(launches)),
        over_rows("the gradient of log_softmax", _backward(True), 1, checked(launches)),
    ),
    variants=("LOGARITHM",),
)
