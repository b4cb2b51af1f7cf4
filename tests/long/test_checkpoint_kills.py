"""A hundred kills inside the write of a checkpoint: none unloadable, none silently wrong, nothing finished lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.train.checkpoint_writer import Forge, campaign

INSIDE, MOST = 100, 1_500


def test_a_hundred_kills_inside_a_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge = Forge.start()
    try:
        tally = campaign(forge, tmp_path / "run", inside=INSIDE, most=MOST, seed=100)
    finally:
        forge.close()
    with capsys.disabled():
        print(f"\n{tally}")
    assert tally.wrong == [] and tally.inside.total() >= INSIDE
    # Kills landed between files as well as in them, not only at one place.
    assert len(tally.inside) >= 4
