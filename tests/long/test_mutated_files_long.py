"""The long form of `tests/cli/test_mutated_files.py`: thousands of files that are almost right."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.mutating import wrong_answers
from tests.cli.test_mutated_files import commands


@pytest.mark.parametrize("seed", range(2, 12))
def test_many_damaged_files(seed: int, tmp_path: Path) -> None:
    assert not (wrong := wrong_answers(commands(tmp_path, 1000, seed))), "\n".join(wrong[:20])
