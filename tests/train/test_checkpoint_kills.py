"""Writers killed with SIGKILL inside a write, and readers beside a writer: only whole checkpoints are ever seen.

tests/long/test_checkpoint_kills.py does the same with five times the kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.train.checkpoint_writer import KEEP, Forge, campaign, content, same

from samebits.train import checkpoint

INSIDE, MOST = 20, 200
SEEN, READS = 12, 2_000


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    forge = Forge.start()
    yield forge
    forge.close()


def test_kills_inside_a_write(forge: Forge, tmp_path: Path) -> None:
    """After each: every committed step is what it wrote, nothing finished is lost, the next write sweeps the rest."""
    tally = campaign(forge, tmp_path / "run", inside=INSIDE, most=MOST, seed=1)
    print(tally)
    assert tally.wrong == [] and tally.inside.total() >= INSIDE


def test_a_marker_before_its_data_is_noticed(forge: Forge, tmp_path: Path) -> None:
    """Planted fault, same harness. That writer names no step, so where a kill landed cannot be told: all count."""
    tally = campaign(forge, tmp_path / "run", inside=MOST, most=MOST, seed=1, writer="marker_first")
    assert any("is committed and cannot be read" in line or "damaged" in line for line in tally.wrong), str(tally)


def test_leftovers_that_stay_are_noticed(forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault, same harness: the next write sweeps nothing."""
    monkeypatch.setattr(checkpoint, "_sweep", lambda folder: None)
    tally = campaign(forge, tmp_path / "run", inside=INSIDE, most=MOST, seed=2)
    assert any("was not swept" in line or "damaged" in line for line in tally.wrong), str(tally)


def watch(forge: Forge, folder: Path, writer: str, seen: int) -> tuple[list[int], list[str]]:
    """(steps read while a writer writes and removes, until `seen` different ones were; what was wrong with them)."""
    checkpoint.write(folder, 0, **content(0), keep=KEEP)
    forge.begin(writer, folder)
    steps, wrong = [], []
    for _ in range(READS):
        found = checkpoint.read(folder)
        steps.append(found.step)
        wrong += [line for line in found.skipped if "not committed" not in line]
        if not same(found):
            wrong.append(f"step {found.step} holds what it did not write")
        if wrong or len(set(steps)) == seen:
            break
    forge.kill()
    return steps, wrong


def test_readers_beside_a_writer(forge: Forge, tmp_path: Path) -> None:
    """Whole checkpoints only, and never an older one after a newer."""
    steps, wrong = watch(forge, tmp_path / "run", "sound", SEEN)
    assert wrong == [] and steps == sorted(steps) and len(set(steps)) == SEEN


def test_a_reader_sees_a_marker_before_its_data(forge: Forge, tmp_path: Path) -> None:
    """Planted fault, same harness. About every second read meets it, so that four times the steps leave no doubt."""
    _, wrong = watch(forge, tmp_path / "run", "marker_first", 4 * SEEN)
    assert wrong
