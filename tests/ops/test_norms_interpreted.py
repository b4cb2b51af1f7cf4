"""The norms by Triton on the CPU: the bits of their CPU kernels in every form, and the launches that keep rows."""

from __future__ import annotations

from functools import partial

import pytest
from tests.ops.interpreting import interpreted

from samebits.ops._triton.rows import RowLaunch
from samebits.ops.rmsnorm.triton_kept import COLUMNS, LANES, WARP, launch_for, steps_of

found = partial(interpreted, "interpreted_norms.py")


def test_the_norms_have_the_bits_of_the_cpu() -> None:
    """Kept rows and rows read by steps, around the borders of blocks, aligned or not, with and without weight and
    bias."""
    differences = found()
    assert len(differences) == 96
    assert not any(differences.values()), {name: each for name, each in differences.items() if each}


@pytest.mark.parametrize(
    ("fault", "noticed"),
    [("always full", ("layernorm", "rmsnorm")), ("from the end", ("layernorm",)), ("whether or not", ("layernorm",))],
)
def test_planted_faults_are_noticed(fault: str, noticed: tuple[str, ...]) -> None:
    differences = found(fault)
    assert all(any(each for name, each in differences.items() if name.startswith(norm)) for norm in noticed)


def test_a_kept_row_fits_the_threads_that_have_it() -> None:
    """Of every width, with few rows and with many: each column has a place, and no thread more columns than it may."""
    for width in (*range(1, 1100), 4095, 4096, 4097, 8192):
        for rows in (1, 100, 100_000):
            launch = launch_for(width, rows)
            steps, kept = steps_of(launch, width)
            assert kept and (steps - 1) * LANES < width <= steps * LANES <= launch.columns
            assert steps * LANES * launch.rows <= COLUMNS * WARP * launch.warps, (width, rows, launch)
    assert steps_of(launch_for(8193, 1), 8193) == (8, False)


def test_many_rows_have_few_warps_each_and_few_rows_as_many_as_help() -> None:
    assert launch_for(256, 16384) == RowLaunch(rows=16, columns=256, warps=4)
    assert launch_for(1024, 16384) == RowLaunch(rows=4, columns=1024, warps=4)
    assert launch_for(4096, 8192) == RowLaunch(rows=2, columns=4096, warps=4)
    assert launch_for(4096, 16) == RowLaunch(rows=1, columns=4096, warps=8)
