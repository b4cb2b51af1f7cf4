"""The launch table of the matrix product: every row is reachable, and none can cut a chain where it may not be cut."""

from __future__ import annotations

from itertools import product

import pytest

from samebits.ops.matmul.launch_table import TABLE, Launch, select


def test_the_table_is_reachable() -> None:
    """Every row is chosen for some size: a row that nobody runs is not shown to be right by anybody."""
    sizes = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
    for dtype, rows in TABLE.items():
        chosen = {
            select(m, n, 4096, dtype=dtype, described=described, wide=wide)
            for m, n, described, wide in product(sizes, (64, 4096, 14336), (True, False), (True, False))
        }
        assert chosen == set(rows)


def test_a_step_that_would_cut_the_chain_elsewhere_is_refused() -> None:
    """Planted fault: a K step that is no multiple of the width of the fused addition."""
    with pytest.raises(ValueError, match="tile_k must be a multiple of 16, got tile_k=24"):
        Launch(tile_m=64, tile_n=64, tile_k=24, warps=4, stages=3)
