"""The spec of the elementary functions: float32 in, float32 out, the same bits from numpy, C++ and Triton.

`evaluate` runs the definition in numpy, `elementary` the C++ library; Triton kernels import the device functions from
`samebits.numerics.elementary.triton_generated`, C++ kernels include `numerics/elementary/generated.h`."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from samebits import native
from samebits.numerics.elementary.evaluate import run
from samebits.numerics.elementary.functions import PROGRAMS
from samebits.numerics.elementary.philox import philox_uint32, philox_uint32_native

__all__ = ["FUNCTIONS", "MAXIMUM_ULP", "elementary", "evaluate", "philox_uint32", "philox_uint32_native", "worst_ulp"]

Floats = NDArray[np.float32]

FUNCTIONS: Final = tuple(PROGRAMS)
"""Every function's name; its place in the tuple is its number in the C++ library."""

MAXIMUM_ULP: Final[dict[str, float]] = {
    "exp": 0.80,
    "exp2": 0.78,
    "log": 0.83,
    "rsqrt": 0.51,
    "sin": 0.73,
    "cos": 0.73,
    "tanh": 0.96,
    "erf": 0.86,
    "sigmoid": 1.48,
}
"""Largest distance from the true value over all 2^32 inputs, in float32 ulps of the true value, rounded up."""


def _number(name: str) -> int:
    if name not in PROGRAMS:
        raise ValueError(f"elementary: name={name!r} is unknown; allowed: {', '.join(FUNCTIONS)}")
    return FUNCTIONS.index(name)


def _checked(name: str, x: Any) -> Floats:
    _number(name)
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        kind = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
        raise ValueError(f"{name}: x must be a numpy array of float32, got {kind}")
    return np.ascontiguousarray(x)


def evaluate(name: str, x: Floats) -> Floats:
    """The definition, one numpy operation after another."""
    values = _checked(name, x)
    (result,) = run(PROGRAMS[name], values.reshape(-1))
    return result.reshape(x.shape)


def elementary(name: str, x: Floats, instruction_set: str | None = None, threads: int | None = None) -> Floats:
    """The function by the C++ library; instruction set and threads decide speed, never bits."""
    values = _checked(name, x)
    result = np.empty(x.shape, np.float32)
    native.call(
        "elementary",
        "ippq",
        _number(name),
        values.ctypes.data,
        result.ctypes.data,
        values.size,
        threads=threads,
        instruction_set=instruction_set,
    )
    return result


def worst_ulp(
    name: str,
    first_pattern: int = 0,
    count: int = 1 << 32,
    instruction_set: str | None = None,
    threads: int | None = None,
) -> tuple[float, int]:
    """(error, input) of the worst of `count` consecutive bit patterns, against the C library in double precision.

    A wrong sign or NaN counts as infinite. All patterns of one function take a minute or two on two cores."""
    if not 0 <= first_pattern <= first_pattern + count <= 1 << 32:
        raise ValueError(f"{name}: patterns must be in 0..2^32, got first_pattern={first_pattern}, count={count}")
    worst, pattern = ctypes.c_double(), ctypes.c_uint32()
    native.call(
        "elementary_worst",
        "iuqpp",
        _number(name),
        first_pattern,
        count,
        ctypes.addressof(worst),
        ctypes.addressof(pattern),
        threads=threads,
        instruction_set=instruction_set,
    )
    return worst.value, pattern.value
