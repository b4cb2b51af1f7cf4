"""How a checker drives `embedding`: inputs, exact values and bounds, the resumed gradient, launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.elementary import philox_uint32_native
from samebits.numerics.recipes import make
from samebits.ops.embedding import embedding_gradient_
from samebits.ops.embedding.reference import embedding64
from samebits.ops.rounding import allowed_error

# Rows (at least 16, for the dot that adds them), columns, warps.
TRITON_LAUNCHES = ((16, 32, 1), (16, 256, 8), (32, 64, 4))
# The ids draw from a stream of their own.
ID_STREAM = 1


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    positions, vocabulary, width = shape
    words = philox_uint32_native(seed, ID_STREAM, positions, threads=1).astype(np.int64)
    return {
        "ids": torch.from_numpy(words * vocabulary >> 32),
        "weight": torch.from_numpy(make(recipe, (vocabulary, width), seed, format)).to(getattr(torch, format)),
    }


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    ids, weight, dy64 = arguments["ids"], arguments["weight"], dy.double()
    y = embedding64(ids, weight)
    most = int(torch.bincount(ids).max())
    dweight, magnitude = (torch.zeros_like(weight, dtype=torch.float64) for _ in range(2))
    dweight.index_add_(0, ids, dy64)
    magnitude.index_add_(0, ids, dy64.abs())
    return {
        "output": Bounded(exact=y, allowed=torch.zeros_like(y)),
        "weight": Bounded(exact=dweight, allowed=allowed_error(dweight, magnitude, error(most), most, 0, dy.dtype)),
    }


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; rows, columns and warps of a program by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops._triton.rows import RowLaunch

    return [{"launch": RowLaunch(rows=rows, columns=columns, warps=warps)} for rows, columns, warps in TRITON_LAUNCHES]


def _resume(arguments: Arguments, dy: Tensor, sums: dict[str, Tensor] | None, backend: str) -> dict[str, Tensor]:
    ids, weight = arguments["ids"], arguments["weight"]
    sums = sums or {"weight": torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)}
    embedding_gradient_(sums["weight"], ids, dy, backend=backend)
    return sums


SPECS = {
    "embedding": OperatorSpec(
        name="embedding",
        row_arguments=("ids",),
        shared_arguments=("weight",),
        shape_axes="MVH",
        make=_make,
        exact=_exact,
        launches=launches,
        without_gradient=("ids",),
        resume=_resume,
    )
}
