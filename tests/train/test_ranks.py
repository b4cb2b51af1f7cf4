"""Training on real ranks: one checkpoint for every grid of tensor and data parallelism, every cut, every death."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest
from tests.parallel.ranks import RankFailedError, on_ranks
from tests.parallel.wires import cut, on_both_sides, wired
from tests.train.ranked_run import LONGER, PRESET, configuration, dying, trained
from tests.train.small_run import TEXT

from samebits.parallel.grid import Grid
from samebits.parallel.world import World
from samebits.train import checkpoint, events
from samebits.train.running import run

GRIDS = [(1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (1, 8), (8, 1), (2, 4)]


@cache
def alone(*settings: str) -> str:
    """The digest that one process gives."""
    with tempfile.TemporaryDirectory() as folder:
        return run(configuration(2, *settings), Path(folder)).digest


# Eight ranks take up to half a minute on two cores; four in one direction are covered by two in both.
@pytest.mark.parametrize(
    ("tensor", "data"), [pytest.param(*grid, marks=() if grid == (2, 2) else pytest.mark.long) for grid in GRIDS]
)
def test_every_grid_gives_one_checkpoint(tensor: int, data: int, tmp_path: Path) -> None:
    """(tensor, data) ranks; the weights of all ranks compared after each update; `tests/long` has 20 updates of all."""
    found = on_ranks(tensor * data, trained, str(tmp_path), tensor, 2)
    assert {summary.digest for summary in found} == {alone()}
    assert [event["digest"] for event in events.read(tmp_path) if event["event"] == "checkpoint"][-1] == alone()


@pytest.mark.parametrize(("tensor", "micro_batch"), [(1, 1), (1, 8), (2, 16)])
def test_the_cut_into_micro_batches_is_not_seen(tensor: int, micro_batch: int, tmp_path: Path) -> None:
    """Half a lane a pass, four, and all eight; `tests/long/test_ranks.py` has it for every grid."""
    assert {summary.digest for summary in on_ranks(2, trained, str(tmp_path), tensor, micro_batch)} == {alone()}


def test_padded_rows_of_short_documents_on_ranks(tmp_path: Path) -> None:
    """Rows that are all shorter than the width: each rank tells the others as many losses as it has."""
    (tmp_path / "texts").mkdir()
    for number in range(32):
        (tmp_path / "texts" / f"{number:02}.txt").write_text("a few words " * (1 + number % 3))
    settings = (
        f"data={{source: text, paths: [{tmp_path / 'texts'}], documents: apart, max_length: 64}}",
        "training.max_steps=2",
        "training.save_steps=2",
    )
    found = on_ranks(2, trained, str(tmp_path / "out"), 1, 2, (*settings, "training.collation=padded"))
    assert {summary.digest for summary in found} == {alone(*settings)}


QWEN = (
    "model.overrides={vocab_size: 700, use_qk_norm: true, tie_word_embeddings: false, intermediate_size: 200}",
    "training.max_steps=4",
    "optimizer.warmup_steps=1",
)


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [(2, (*QWEN, "training.dtype=bfloat16")), (3, QWEN)],
    ids=["norms of heads, bfloat16, untied", "3 ranks, uneven sizes"],
)
def test_uneven_shares_keep_the_bits(ranks: int, settings: tuple[str, ...], tmp_path: Path) -> None:
    """Two key heads for three ranks, 13 steps of 16 rows, three blocks of words: some ranks have more, one no heads.
    Two lanes a pass, where one process has one."""
    (digest,) = {summary.digest for summary in on_ranks(ranks, trained, str(tmp_path), ranks, 4, settings)}
    assert digest == alone(*settings)


def test_lanes_decide_bits() -> None:
    """Planted: were lanes as many as ranks, another number of ranks would be another run."""
    assert alone("training.lanes=2") != alone()


def killed_and_resumed(folder: Path, deaths: int, ranks: int) -> set[str]:
    """Digests of the end after deaths by SIGKILL, each on the next grid, at a random moment of a random step; the last
    part is on so many ranks."""
    chance = random.Random(6)
    grids = [(1, 2), (2, 1), (1, 4), (2, 2), (1, 1)]
    steps = 0
    for death in range(deaths):
        tensor, data = grids[death % len(grids)]
        victim, step = chance.randrange(tensor * data), chance.randint(1, 3)
        with pytest.raises(RankFailedError, match=r"ended without a word|was lost"):
            on_ranks(tensor * data, dying, str(folder), tensor, victim, step, chance.random() / 4)
        kept = checkpoint.committed(folder)
        assert kept == sorted(kept) and (kept or [0])[-1] >= steps, "a death cost a checkpoint"
        steps = (kept or [0])[-1]
    return {summary.digest for summary in on_ranks(ranks, trained, str(folder), 2, 2, LONGER, True)}


@pytest.mark.long
def test_killed_anywhere_and_resumed_on_another_grid(tmp_path: Path) -> None:
    """On two grids; the long tests go through all five of them, four times."""
    assert killed_and_resumed(tmp_path, 2, 4) == {alone(*LONGER)}


@pytest.mark.long
def test_a_cut_wire_leaves_whole_checkpoints(tmp_path: Path) -> None:
    """Two ranks on two machines, so to speak, and the wire between them is cut in the middle of a run."""
    settings = ("training.max_steps=30", "training.save_steps=2")
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(TEXT)
    given = [
        word
        for setting in (*PRESET, "training.gradient_accumulation_steps=8", *settings)
        for word in ("--set", setting)
    ]
    command = [sys.executable, "-m", "samebits.cli", "train", str(recipe), "--out", str(folder), *given]
    with wired() as wire:
        sides = on_both_sides(wire, command, timeout=3)
        try:
            while not folder.is_dir() or len(checkpoint.committed(folder)) < 2:
                assert all(side.poll() is None for side in sides), "a rank ended before the cut"
                time.sleep(0.02)
            cut(wire)
            errors = [side.communicate(timeout=60)[1] for side in sides]
        finally:
            for side in sides:
                side.kill()
    assert [side.returncode for side in sides] == [3, 3], errors
    for rank, error in enumerate(errors):
        (line,) = (line for line in error.splitlines() if line.startswith("samebits: "))
        assert line.startswith(f"samebits: rank {rank}: exchange ") and " waited 3." in line, error
    kept = checkpoint.committed(folder)
    assert 2 <= len(kept) < 15 and all(checkpoint.read(folder, step).step == step for step in kept)
    assert checkpoint.read(folder).skipped == ()
    assert run(configuration(2, *settings), folder, resume=True).digest == alone(*settings)


def test_a_grid_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tensor is 3 for 8 ranks; allowed: a divisor"):
        Grid(world=World(size=8), tensor=3)
    with pytest.raises(RankFailedError, match="3 ranks for 8 lanes; allowed: a divisor of the number of lanes"):
        on_ranks(3, trained, str(tmp_path), 1, 2)
