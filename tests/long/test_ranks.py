"""Every grid with every cut, 20 updates: the whole table of which `tests/train/test_ranks.py` runs a part."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.parallel.ranks import on_ranks
from tests.train.ranked_run import LONGER, trained
from tests.train.test_ranks import GRIDS, alone, killed_and_resumed


@pytest.mark.parametrize("micro_batch", [1, 2, 8])
@pytest.mark.parametrize(("tensor", "data"), [(1, 1), *GRIDS])
def test_one_checkpoint(tensor: int, data: int, micro_batch: int, tmp_path: Path) -> None:
    found = on_ranks(tensor * data, trained, str(tmp_path), tensor, micro_batch, LONGER, seconds=600.0)
    assert {each.digest for each in found} == {alone(*LONGER)}


def test_twenty_deaths(tmp_path: Path) -> None:
    assert killed_and_resumed(tmp_path, 20, 8) == {alone(*LONGER)}
