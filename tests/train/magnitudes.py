"""Numbers whose largest magnitude a watched run must know exactly, on every device."""

from __future__ import annotations

import math

SMALLEST = 2.0**-149
GREATEST = 2.0**128 - 2.0**104
LARGEST: dict[str, tuple[list[float], float]] = {
    "zeros": ([0.0, -0.0], 0.0),
    "none": ([], 0.0),
    "subnormal": ([0.0, -SMALLEST, 0.0], SMALLEST),
    "negative": ([1.0, -3.5, 2.0], 3.5),
    "the greatest there is": ([1.0, -GREATEST], GREATEST),
    "infinite": ([1.0, -math.inf], math.inf),
    "nan": ([1.0, math.nan, math.inf], math.nan),
    "nan among zeros": ([0.0] * 70000 + [math.nan] + [0.0] * 70000, math.nan),
}
