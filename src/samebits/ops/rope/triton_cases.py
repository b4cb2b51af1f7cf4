"""What is traced and compiled of RoPE by Triton: heads turned there and back, in both layouts."""

from __future__ import annotations

import torch

from samebits.contracts.traced import (
    Call,
    Memory,
    Outputs,
    TracedKernels,
    batch_axis,
    by_rows,
    checked,
    over_rows,
    result,
    shared,
)
from samebits.ops.rope import triton_kernel
from samebits.ops.rope.check import launches


def _rotated(interleaved: bool, opposite: bool) -> Call:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        (x,) = by_rows(memory, dtype, x=(m, 5, 48))
        positions = torch.zeros(m, dtype=torch.int64)
        memory.add("positions", positions, *batch_axis(positions), traced=True)
        (frequencies,) = shared(memory, torch.float32, frequencies=(24,))
        return {"y": result(triton_kernel.rotate(x, positions, frequencies, 1.5, interleaved, opposite))}

    return call


KERNELS = TracedKernels(
    cases=(
        over_rows("rope of 5 heads of 48, halves", _rotated(False, False), 1, checked(launches)),
        over_rows("interleaved, back again", _rotated(True, True), 1, checked(launches)),
    ),
    variants=("INTERLEAVED", "OPPOSITE", "SCALED"),
)
