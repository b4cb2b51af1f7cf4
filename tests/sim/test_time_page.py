"""docs/sim_time.md shows what the commands print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.repository.documents import PROJECT, blocks
from tests.sim.test_validate import found

from samebits.cli import main
from samebits.sim import validate

PAGE = (PROJECT / "docs" / "sim_time.md").read_text()


def shown(command: str) -> list[str]:
    """The lines below a command in the page."""
    for block in blocks(PAGE):
        first, *lines = block.text.splitlines() or [""]
        if first == f"$ {command}":
            return lines
    raise AssertionError(f"the page does not show {command}")


def printed(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(PROJECT)
    with pytest.raises(SystemExit) as ended:
        main(command.split()[1:])
    assert ended.value.code == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_page_shows_what_predict_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """All but the last line, which says how long it took; the picture is the one that the command draws."""
    command = "samebits sim predict recipes/8b.yaml --gpus 64 --gpus 1024 --gpus 16384"
    picture = tmp_path / "step.svg"
    lines = printed(f"{command} --picture {picture}", monkeypatch, capsys)
    assert lines[:-1] == shown(command) and "predicted in" in lines[-1]
    assert picture.read_text() == (PROJECT / "docs" / "sim_step.svg").read_text()


def test_the_page_shows_what_validate_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = list(found().values())
    monkeypatch.setattr(validate, "comparisons", lambda: known)
    assert printed("samebits sim validate", monkeypatch, capsys) == shown("samebits sim validate")
