"""A kernel of one's own under trace: (x_ptr, y_ptr, M, H, BLOCK) takes the rows of x to the rows of y, one a program.

Kept small, for the planted kernels of the tests and for a first look at somebody else's."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import triton
import triton.language as tl

from samebits.contracts.traced import Case, Memory, Outputs, by_rows, result

WIDTH = 100


@triton.jit  # type: ignore[untyped-decorator]
def twice_plus_one(x_ptr, y_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """y = fma(x, 2, 1): what the self-test knows the expression of."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.fma(tl.load(x_ptr + places), tl.full((BLOCK,), 2.0, tl.float32), 1.0))


def own_case(file: str, name: str) -> Case:
    """A kernel by its file and name, in batches of 1, 2 and 5 rows of 100; its module may choose BLOCK from M."""
    spec = importlib.util.spec_from_file_location("own_kernel", file)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"tracing: {file} is no Python file")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = getattr(module, name)
    block_of = getattr(module, f"{name}_block", lambda m: 128)

    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        (x,) = by_rows(memory, dtype, x=(m, WIDTH))
        y = torch.zeros_like(x)
        kernel[(m,)](x, y, m, WIDTH, BLOCK=block_of(m), enable_fp_fusion=False)
        return {"y": result(y)}

    return Case(
        words=name,
        call=call,
        batches=(1, 2, 5),
        rows=lambda m: m,
        launches=lambda _: [None],
        formats=("float32",),
        faults=("twice", "missing", "neighbour"),
    )
