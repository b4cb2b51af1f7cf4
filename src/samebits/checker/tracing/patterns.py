"""Constants of Triton's float formats: the pattern of a value and the value of a pattern."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

FORMATS: Final = {"fp32": np.float32, "fp16": np.float16, "fp64": np.float64}


def is_float(dtype: str) -> bool:
    return dtype in FORMATS or dtype == "bf16"


def value_of(dtype: str, bits: int) -> float | None:
    if dtype == "bf16":
        return float(np.array([bits << 16], np.uint32).view(np.float32)[0])
    if dtype not in FORMATS:
        return None
    kind = np.dtype(FORMATS[dtype])
    return float(np.array([bits], f"u{kind.itemsize}").view(kind)[0])


def pattern_of(dtype: str, value: float) -> int:
    with np.errstate(all="ignore"):
        if dtype == "bf16":
            return int(np.array([value], np.float32).view(np.uint32)[0]) >> 16
        kind = np.dtype(FORMATS[dtype])
        return int(np.array([value], kind).view(f"u{kind.itemsize}")[0])


def holds(dtype: str, value: float) -> bool:
    return is_float(dtype) and (math.isnan(value) or value_of(dtype, pattern_of(dtype, value)) == value)
