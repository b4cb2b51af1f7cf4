"""Configs, recipes and headers that are almost right: a result or one line, never a traceback, in bounded time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.cli.mutating import damaged_folder, damaged_recipe, model_folder, wrong_answers

from samebits.model.config import ModelConfig


def commands(folder: Path, count: int, seed: int) -> list[list[str]]:
    """Command lines on damaged files, each a function of seed and number."""
    good, made = model_folder(folder / "good"), []
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        if number % 2:
            path = folder / f"{number}.yaml"
            path.write_text(damaged_recipe(chance), encoding="utf-8")
            made.append(["plan", str(path), "--json"])
        else:
            path = folder / str(number)
            damaged_folder(good, path, chance)
            made.append(["generate", "--model", str(path), "--prompt", "ab", "--max-tokens", "2", "--json"])
    return made


def test_damaged_files(tmp_path: Path) -> None:
    """60 of them; `tests/long/test_mutated_files_long.py` has thousands."""
    assert not (wrong := wrong_answers(commands(tmp_path, 60, 1))), "\n".join(wrong[:20])


def test_a_reader_that_asks_no_kinds_is_noticed() -> None:
    """Planted: a config whose family is a list, as it was read before."""
    with pytest.raises(ValueError, match=r"^config.json: model_type is \[\]; allowed: llama, qwen3$"):
        ModelConfig.from_huggingface({"model_type": []})
    assert wrong_answers([["no", "such", "command"]]), "an error without a document must be noticed"
