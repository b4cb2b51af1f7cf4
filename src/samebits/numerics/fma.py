"""float32 fused multiply-add in numpy: a*b + c with one rounding.

Knows no kernel; it is the plain definition that kernels are compared with."""

from __future__ import annotations

import numpy as np


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """round(a*b + c), nearest even, subnormals kept.

    The product of two float32 is exact in float64. The sum is rounded there to odd, which loses nothing that the final
    rounding to float32 could still need (53 >= 24 + 2 bits)."""
    with np.errstate(all="ignore"):
        product = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
        addend = np.asarray(c, np.float32).astype(np.float64)
        total = product + addend
        virtual = total - product
        error = (product - (total - virtual)) + (addend - virtual)
        bits = np.atleast_1d(total).view(np.int64).reshape(total.shape)
        even = (bits & 1) == 0
        # Patterns of one sign are ordered by magnitude: one step away from zero is +1, towards it -1.
        step = np.where((error > 0) == (total > 0), 1, -1)
        inexact = even & np.isfinite(error) & (error != 0)
        odd = np.atleast_1d(np.where(inexact, bits + step, bits)).view(np.float64).reshape(total.shape)
        return odd.astype(np.float32)
