"""What is traced of the grouped product by Triton: rows by expert or in turn, and the weights' gradients at cuts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from samebits.contracts.traced import (
    SHARED,
    Call,
    Case,
    Memory,
    Output,
    Outputs,
    TracedKernels,
    batch_axis,
    by_rows,
    checked,
    one_row,
    over_cuts,
    shared,
)
from samebits.ops.grouped_matmul import triton_kernel
from samebits.ops.grouped_matmul.check import launches


def _product(depth: int, *, mixed: bool) -> Call:
    """Rows of four experts, in turn or by expert; compared with rows of the same expert."""

    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        (x,) = by_rows(memory, dtype, x=(m, depth))
        (weight,) = shared(memory, dtype, weight=(4, depth, 24))
        expert = torch.arange(m) * 3 % 4 if mixed else torch.sort(torch.arange(m) * 3 % 4)[0]
        ends, y = torch.bincount(expert, minlength=4).cumsum(0), torch.zeros(m, 24, dtype=dtype)
        rows = torch.argsort(expert, stable=True) if mixed else None
        triton_kernel.forward(x, weight, rows, ends, y)
        return {"y": Output(y, batch_axis(y)[0], expert.numpy()[:, None] * 24 + np.arange(24))}

    return call


def _dweight(memory: Memory, dtype: torch.dtype, cuts: tuple[int, ...]) -> Outputs:
    """The gradients of two experts' weights over 40 rows each, in one launch or resumed at the cuts."""
    experts, sizes = 2, {"x": 24, "dy": 8}
    (accumulator,) = shared(memory, torch.float32, accumulator=(experts, *sizes.values()))
    for first, last in pairwise((0, *cuts, 40)):
        own = np.concatenate([expert * 40 + np.arange(first, last) for expert in range(experts)])
        given = {name: torch.zeros(len(own), width, dtype=dtype) for name, width in sizes.items()}
        for name, tensor in given.items():
            places = own[:, None] * sizes[name] + np.arange(sizes[name])
            memory.add(name, tensor, np.full(tensor.numel(), SHARED), places)
        ends = torch.arange(1, experts + 1) * (last - first)
        triton_kernel.dweight(given["x"], given["dy"], None, ends, accumulator, resumed=True)
    return {"dweight": one_row(accumulator)}


def _over_experts(words: str, call: Call) -> Case:
    """With 21 rows some programs have nothing to do, with 5 the last one has. No result is rounded but at the end."""
    return Case(
        words=words,
        call=call,
        batches=(1, 2, 21, 5),
        rows=lambda m: m,
        launches=checked(launches),
        faults=("twice", "missing", "neighbour"),
    )


KERNELS = TracedKernels(
    cases=(
        _over_experts("rows by expert, K 72, N 24", _product(72, mixed=False)),
        _over_experts("rows of experts in turn, K 70, N 24", _product(70, mixed=True)),
        over_cuts(
            "the gradients of two weights over 40 rows each, cut at",
            _dweight,
            1,
            checked(launches),
            ((), (16,), (16, 32)),
            faults=("twice", "missing"),
        ),
    )
)
