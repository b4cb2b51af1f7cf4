"""SwiGLU and GELU by Triton's interpreter for every number that 16 bits hold, as benchmarks/gpu_rows_bits.py has them.

Run with TRITON_INTERPRET=1, in a process of its own. Prints a line of JSON: by case, the first difference or null."""

from __future__ import annotations

import json
import sys
from typing import Any

import gpu_rows_bits as bits
import numpy as np
import torch
import triton
import triton.language as tl
from tests.ops.interpreted_attention import install
from triton.runtime import interpreter

from samebits.checker.tracing.comparing import without_gpu
from samebits.native.launch_numbers import launching
from samebits.ops._triton import halves

OFF = 2.0**-21
"""How far off a power of two may be: PTX says 2^-22."""
NOTHING = 2.0**-120
"""A power of two with less than this as its exponent is taken for 1; PTX says so of subnormal exponents, 0 included."""


def powers_off(by: float) -> None:
    """From now on powers of two are off by so much, or as near as that is to 1."""

    def exp2(_: Any, handle: Any) -> Any:
        exponent = handle.data.astype(np.float64)
        off = np.where(np.abs(exponent) < NOTHING, 0.0, by)
        return interpreter.TensorHandle((np.exp2(exponent) * (1 + off)).astype(np.float32), handle.dtype.scalar)

    interpreter.InterpreterBuilder.create_exp2 = exp2


def round_to_nearest() -> None:
    """As a GPU does; the interpreter cuts what a bfloat16 does not hold."""
    cut = interpreter.InterpreterBuilder.create_fp_trunc

    def rounded(builder: Any, handle: Any, kind: Any) -> Any:
        if kind.scalar != tl.bfloat16 or handle.data.dtype != np.float32:
            return cut(builder, handle, kind)
        made = torch.from_numpy(np.ascontiguousarray(handle.data)).bfloat16().view(torch.int16)
        return interpreter.TensorHandle(made.numpy().view(np.uint16), tl.bfloat16)

    interpreter.InterpreterBuilder.create_fp_trunc = rounded


@triton.jit
def parabola_alone(t):
    """Planted: an inverse without the step that cubes its error."""
    return tl.fma(tl.fma(t, 0.3075, -0.7975), t, 0.99)


def differences(planted: bool) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    with without_gpu(), launching(launch=bits.WHOLE), np.errstate(all="ignore"):
        for dtype in bits.HALVES[:1] if planted else bits.HALVES:
            found |= bits.differing(dtype, bits.of_functions(dtype, "cpu"))
            found |= bits.differing(dtype, bits.of_kernels(dtype, "cpu"))
        for by in (2.0**-17,) if planted else (OFF, -OFF):
            powers_off(by)
            found |= bits.differing(torch.bfloat16, bits.of_gelu(torch.bfloat16, "cpu"), f" powers off by {by}")
    return found


if __name__ == "__main__":
    install()
    round_to_nearest()
    if "planted" in sys.argv:
        halves.inverse_of_one_more = parabola_alone
    print(json.dumps(differences("planted" in sys.argv)))
