"""Prints `exp_up_to_zero` as C: what the tracer of kernels makes of its source, one operation a line.

Run with TRITON_INTERPRET=1, in a process of its own. An operation that is in no table here is refused."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import triton
import triton.language as tl

from samebits.checker.tracing.comparing import without_gpu
from samebits.checker.tracing.hooks import install
from samebits.checker.tracing.interpreter import Tracer
from samebits.contracts.traced import by_rows
from samebits.ops._triton.exponential import exp_up_to_zero

TYPES: Final = {"fp32": "float", "int32": "int32_t"}
OPERATIONS: Final = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "fma": "fmaf({}, {}, {})",
    "max.nan": "({0} != {0} || {1} != {1}) ? NAN : ({0} > {1} ? {0} : {1})",
    # Of two's complement, whatever falls off the end.
    "iadd": "(int32_t)((uint32_t){} + (uint32_t){})",
    "shl": "(int32_t)((uint32_t){} << (uint32_t){})",
}
BITCASTS: Final = {"fp32": "as_float({})", "int32": "as_int({})"}


@triton.jit
def exponentials(x_ptr, y_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, exp_up_to_zero(tl.load(x_ptr + places)))


def as_c(tracer: Tracer, node: int) -> list[str]:
    """The lines of a node and of all that it is made from, which come first; v0 is what is handed over."""
    lines: list[str] = []
    names: dict[int, str] = {}

    def named(each: int) -> str:
        if each not in names:
            op, dtype, *parts = tracer.nodes.keys[each]
            if op == "leaf":
                return names.setdefault(each, "x")
            if op == "constant":
                pattern = int(np.int64(parts[0]).astype(np.uint32))
                text = f"as_float({pattern:#x}u)" if dtype == "fp32" else f"(int32_t){pattern:#x}u"
            else:
                given = [named(int(part)) for part in parts]
                text = (BITCASTS[dtype] if op == "bitcast" else OPERATIONS[op]).format(*given)
            names[each] = f"v{len(names)}"
            lines.append(f"    const {TYPES[dtype]} {names[each]} = {text};")
        return names[each]

    lines.append(f"    return {named(node)};")
    return lines


if __name__ == "__main__":
    tracer = Tracer()
    install(tracer)
    (x,) = by_rows(tracer.memory, torch.float32, x=(2, 1))
    y = torch.zeros(2, 1)
    with without_gpu():
        exponentials[(1,)](x, y, BLOCK=2, enable_fp_fusion=False)
    cells, _ = tracer.memory.result(y)
    one, other = cells["id"].reshape(-1).tolist()
    assert one == other and cells["row"].reshape(-1).tolist() == [0, 1], "not an elementwise function"
    print("\n".join(as_c(tracer, one)))
