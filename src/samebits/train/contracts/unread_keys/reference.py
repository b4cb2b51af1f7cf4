"""What is read is what was written."""

from __future__ import annotations

from torch import Tensor


def written64(table: Tensor) -> Tensor:
    """The numbers of the table."""
    return table.double()
