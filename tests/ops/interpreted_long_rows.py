"""Kernels of benchmarks/long_rows, which no launch takes yet, run by Triton's interpreter beside softmax on the CPU.

Run with TRITON_INTERPRET=1 and both folders on the path, in a process of its own. Prints a line of JSON: by case, the
first difference or null."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import numpy as np
import torch
from long_rows import exponential, launches
from long_rows.launches import LongRowLaunch
from tests.ops.interpreted_attention import install
from triton.runtime import interpreter

from samebits.checker.tracing.comparing import without_gpu
from samebits.numerics.bits import compare
from samebits.numerics.elementary import elementary
from samebits.numerics.fma import fma32
from samebits.ops.softmax import cpu_kernel

LAUNCHES = (
    LongRowLaunch(shared=False, steps=2, block=256),
    LongRowLaunch(shared=True, steps=4, lanes=64, block=256),
    LongRowLaunch(shared=True, steps=2, lanes=16, block=512),
)
# Shorter than a block; no multiple of what is read at once; two rows of which each is several parts.
CASES = ((2, 100, torch.float32), (1, 2083, torch.bfloat16), (2, 1536, torch.float32))


def given(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """One row: each lane begins with 1, to which one of the others adds nothing, and two of them at once something.
    Several: random numbers with an infinity in the first, and a NaN in the last."""
    if rows == 1:
        return torch.where(torch.arange(width) < 256, 0.0, -16.875)[None].to(dtype)
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(width)) * 8
    x[0, 7], x[-1, width // 2] = -torch.inf, torch.nan
    return x.to(dtype)


def differences() -> dict[str, str | None]:
    found = {}
    for (rows, width, dtype), logarithm in itertools.product(CASES, (False, True)):
        x = given(rows, width, dtype)
        expected = cpu_kernel.forward(x, torch.float32, logarithm)
        for number, launch in enumerate(LAUNCHES):
            with without_gpu():
                y = launches.forward(x, torch.float32, logarithm, launch)
            wrong = compare(y, expected)
            name = f"{'log_softmax' if logarithm else 'softmax'} {rows}x{width} {dtype} launch {number}"
            found[name] = None if wrong is None else str(wrong)
    return found


def exponentials() -> str | None:
    """A two-thousandth of all inputs up to zero, and those around where results are subnormal or nothing."""
    edges = np.array([-0.0, -86.0, -87.33655, -103.97208, -104.0, -np.inf, np.nan], dtype=np.float32).view(np.uint32)
    around = (edges[:, None].astype(np.int64) + np.arange(-512, 512)).reshape(-1) % 2**32
    patterns = np.concatenate([np.arange(2**31, 2**32, 2003), around]).astype(np.uint32)
    patterns = np.resize(patterns[patterns >= 2**31], -(-len(patterns) // 4096) * 4096)
    expected = torch.from_numpy(elementary("exp", patterns.view(np.float32)))
    bits, y = torch.from_numpy(patterns.view(np.int32)), torch.empty(len(patterns))
    with without_gpu():
        exponential.exponentials[(len(patterns) // 4096,)](bits, y, SHORTER=True, BLOCK=4096)
    if "planted" in sys.argv:
        # As a device that has no subnormal numbers.
        y[y < 2.0**-126] = 0
    wrong = compare(y, expected)
    return None if wrong is None else str(wrong)


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
    print(json.dumps({"exponentials": exponentials()} if "exponentials" in sys.argv else differences()))
