"""Ranks that would train something else: refused before the first step on every rank, with nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.parallel.ranks import on_ranks
from tests.train.ranked_run import configuration

from samebits.model import Model
from samebits.model.huggingface import save_folder
from samebits.model.tokenizer import Tokenizer
from samebits.parallel.grid import Grid
from samebits.parallel.world import World
from samebits.train import running
from samebits.train.assessment import shape_of
from samebits.train.running import run


def told(world: World, folders: list[str], settings: list[tuple[str, ...]], resume: bool) -> str:
    config = configuration(2, *settings[world.rank])
    try:
        run(config, Path(folders[world.rank]), grid=Grid(world=world), resume=resume)
    except ValueError as error:
        return str(error)
    return ""


def lines(folder: Path, *settings: tuple[str, ...], resume: bool = False) -> list[str]:
    return list(on_ranks(2, told, [str(folder / "run")] * 2, list(settings), resume))


SHORT = ("training.max_steps=2", "optimizer.warmup_steps=1", "training.save_steps=1")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("training.seed=43", "training.seed is 42 on rank 0 and 43 on rank 1"),
        ("optimizer.eps=1e-9", "optimizer.eps is 1e-08 on rank 0 and 1e-09 on rank 1"),
        ("monitoring.compare_steps=2", "monitoring.compare_steps is 1 on rank 0 and 2 on rank 1"),
        ("training.waive=[CFG-OB6, CFG-OB7]", "training.waive is"),
    ],
)
def test_another_setting(changed: str, said: str, tmp_path: Path) -> None:
    first, second = lines(tmp_path, SHORT, (*SHORT, changed))
    assert first == second and first.startswith(f"ranks: {said}") and not (tmp_path / "run").exists()


def test_one_other_byte_of_the_data(tmp_path: Path) -> None:
    settings = []
    for name, text in (("a", "One text. " * 200), ("b", "One text. " * 199 + "One text! ")):
        (tmp_path / name).write_text(text)
        data = f"data={{source: text, paths: [{tmp_path / name}], max_length: 16}}"
        settings.append((*SHORT, data))
    first, second = lines(tmp_path, *settings)
    assert first == second and first.startswith("ranks: data is sha256:") and not (tmp_path / "run").exists()
    # The same bytes at another place are the same data.
    (tmp_path / "b").write_bytes((tmp_path / "a").read_bytes())
    assert lines(tmp_path, *settings) == ["", ""]


def test_other_weights_to_start_from(tmp_path: Path) -> None:
    settings = []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        save_folder(Model.new(shape_of(configuration(2)), seed), folder, Tokenizer.of_bytes())
        settings.append((*SHORT, f"model={{folder: {folder}}}"))
    first, second = lines(tmp_path, *settings)
    assert first == second and first.startswith("ranks: model weights is sha256:") and not (tmp_path / "run").exists()


def test_another_checkpoint(tmp_path: Path) -> None:
    for name, steps in (("a", 2), ("b", 3)):
        run(configuration(2, *SHORT, f"training.max_steps={steps}"), tmp_path / name)
    folders = [str(tmp_path / name) for name in ("a", "b")]
    first, second = on_ranks(2, told, folders, [SHORT] * 2, True)
    assert first == second and first.startswith('ranks: checkpoint is "step 2, ') and '"step 3, ' in first


def unasked(world: World, folder: str) -> str:
    running.agree = lambda *_: None  # type: ignore[assignment]
    return told(world, [folder] * 2, [SHORT, (*SHORT, "optimizer.weight_decay=0.5")], False)


def test_without_the_comparison_it_goes_unseen(tmp_path: Path) -> None:
    """Planted: ranks that are not asked train together, each by its own settings."""
    assert on_ranks(2, unasked, str(tmp_path / "run")) == ["", ""]
