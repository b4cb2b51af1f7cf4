"""Integer facts of the sizes that a product is told, for all of them: no place beside the result is written.

Models where cpu_kernel.cpp:product writes; that every output is in one tile is proved beside the kernel itself."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth


def _largest_index(z: Symbols) -> Truth:
    """Place (row + y, column + x) of a tile that begins at (row, column) and is cut at the ends of the result."""
    m, n, k, rows, columns = z.wholes("m n k rows columns", least=1)
    row, column = z.whole("row", least=0, below=m), z.whole("column", least=0, below=n)
    y = z.whole("y", least=0, below=z.smaller(rows, m - row))
    x = z.whole("x", least=0, below=z.smaller(columns, n - column))
    index = (row + y) * z.planted(n, k) + column + x
    return (index >= 0) & (index < m * n)


def largest_index() -> Proof:
    """cpu_kernel.cpp:product."""
    claim = Claim(name="writes inside the result", state=_largest_index, fault="depth and columns change places")
    return prove([claim], bound="all sizes and tilings >= 1")
