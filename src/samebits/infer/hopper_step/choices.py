"""How products of the step for Hopper are launched, by rows. Decides speed alone: all choices give the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Rows up to which a pass is a matter of reading weights alone, and a program waits rather than computes.
FEW_ROWS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductLaunch:
    """Of the product of a few rows."""

    depth: int = 256
    """Of a step along K; half of it for gate and up, which are loaded together."""
    stages: int = 12
    """Steps on their way, or as many as fit."""
    overlapped: bool = False
    """A step's products begin before those of the step before are done."""


def by_rows(rows: int) -> ProductLaunch:
    """Measured on an H200 at 1, 16, 64 and 256 rows (benchmarks/NOTES.md)."""
    return ProductLaunch(overlapped=rows <= FEW_ROWS)
