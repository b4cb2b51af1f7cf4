"""Recipes by name and by path, from any folder; where the shipped files lie in a source tree and in a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.records import shipped as finding
from samebits.records.shipped import recipe, shipped

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("named", ["tiny", "recipes/tiny.yaml"])
def test_a_shipped_recipe_is_found_from_any_folder(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipe(Path(named)) == ROOT / "recipes" / "tiny.yaml"
    # A file that is there goes first.
    (tmp_path / "recipes").mkdir()
    for mine in ("tiny", "recipes/tiny.yaml"):
        (tmp_path / mine).write_text("")
    assert recipe(Path(named)) == Path(named)


def test_other_paths_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for named in (Path("elsewhere/tiny.yaml"), Path("tiny.yaml"), tmp_path / "recipes" / "tiny.yaml"):
        assert recipe(named) == named
    with pytest.raises(
        ValueError, match=r"^tinny is neither a file nor a shipped recipe; shipped: 350m, 350m_short, 8b, .*, tiny, "
    ):
        recipe(Path("tinny"))


def test_a_source_tree_that_is_not_installed_finds_its_own() -> None:
    code = "from samebits.records.shipped import shipped; print(shipped('goldens'))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        text=True,
        capture_output=True,
        check=True,
    )
    assert Path(ran.stdout.strip()) == ROOT / "goldens"


def test_a_wheel_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "PACKAGE", tmp_path / "site-packages" / "samebits")
    assert finding.checkout() is None and shipped("recipes") == finding.PACKAGE / "_data" / "recipes"
