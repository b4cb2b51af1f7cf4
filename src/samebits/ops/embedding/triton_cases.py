"""What is traced and compiled of the embedding by Triton: rows of a table of 40 columns."""

from __future__ import annotations

import numpy as np
import torch

from samebits.contracts.traced import Memory, Output, Outputs, TracedKernels, checked, over_rows, shared
from samebits.ops.embedding import triton_kernel
from samebits.ops.embedding.check import launches


def _rows(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    (weight,) = shared(memory, dtype, weight=(7, 40))
    ids = torch.arange(m) % 3
    y = triton_kernel.forward(ids, weight)
    return {"y": Output(y, np.repeat(np.arange(m), 40).reshape(m, 40), ids.numpy()[:, None] * 40 + np.arange(40))}


KERNELS = TracedKernels(
    cases=(over_rows("rows of a table of 40", _rows, 1, checked(launches), faults=("twice", "missing")),),
    variants=("RESUME",),
)
