"""Softmax's forward kernels by Triton's interpreter, by one program a row and by several, beside those of the CPU.

Run with TRITON_INTERPRET=1, in a process of its own. Prints a line of JSON: by case, the
first difference or null."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import numpy as np
import torch
from tests.ops.interpreted_attention import install
from triton.runtime import interpreter

from samebits.checker.tracing.comparing import without_gpu
from samebits.numerics.bits import compare
from samebits.numerics.fma import fma32
from samebits.ops._triton.rows import RowLaunch
from samebits.ops.softmax import cpu_kernel, triton_kernel
from samebits.ops.softmax.triton_kernel import SharedLaunch

LAUNCHES = (
    RowLaunch(rows=1, columns=512),
    RowLaunch(rows=4, columns=256),
    SharedLaunch(steps=4, lanes=64, block=256),
    SharedLaunch(steps=2, lanes=16, block=128),
)
# Shorter than a block; no multiple of what is read at once; rows of which each is several parts; one element each.
CASES = ((2, 100, torch.float32), (1, 2083, torch.bfloat16), (3, 1536, torch.float32), (3, 1, torch.float32))


def given(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """One row: each lane begins with 1, to which one of the others adds nothing, and two of them at once something.
    Several: random numbers with an infinity in the first, and a NaN in the last; infinities alone between."""
    if rows == 1:
        return torch.where(torch.arange(width) < 256, 0.0, -16.875)[None].to(dtype)
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(width)) * 8
    x[0, 7 % width], x[1:-1], x[-1, width // 2] = -torch.inf, -torch.inf, torch.nan
    return x.to(dtype)


def differences() -> dict[str, str | None]:
    found = {}
    for (rows, width, dtype), logarithm in itertools.product(CASES, (False, True)):
        x = given(rows, width, dtype)
        expected = cpu_kernel.forward(x, torch.float32, logarithm)
        for number, launch in enumerate(LAUNCHES):
            with without_gpu():
                y = triton_kernel.forward(x, torch.float32, logarithm, launch=launch)
            wrong = compare(y, expected)
            name = f"{'log_softmax' if logarithm else 'softmax'} {rows}x{width} {dtype} launch {number}"
            found[name] = None if wrong is None else str(wrong)
    return found


def terms_first(_: Any, a: Any, b: Any, total: Any, *__: Any) -> Any:
    """Planted: what a reduction would do, which adds the terms of some steps before it adds them to the lane."""
    sums = np.zeros_like(total.data)
    for step in range(a.data.shape[1]):
        sums = fma32(a.data[:, step, None], b.data[None, step], sums)
    return interpreter.TensorHandle(total.data + sums, total.dtype.scalar)


if __name__ == "__main__":
    install()
    if "planted" in sys.argv:
        CASES = CASES[1:2]
        interpreter.InterpreterBuilder.create_dot = terms_first
        LAUNCHES = LAUNCHES[2:]
    print(json.dumps(differences()))
