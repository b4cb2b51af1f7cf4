"""Killed without warning at ten random steps and resumed each time: the same last checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.train.killing import killed_and_resumed, whole


@pytest.mark.parametrize("seed", [1, 2])
def test_ten_kills(seed: int, tmp_path: Path) -> None:
    digest = whole(tmp_path)
    assert killed_and_resumed(tmp_path, kills=10, seed=seed) == {digest}
