"""The documents are true: paths and make targets exist, Python runs, the README opens with what a command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.repository.documents import PAGES, PROJECT, blocks, name_of

from samebits.cli import main
from samebits.parity import portable

PATHS = re.compile(r"(?<![\w/])(?:src|docs|tests|benchmarks|goldens|examples|recipes)/[\w./-]*\w")
# Made when the site is built, whose own test (tests/long/test_site.py) asks for them.
MADE = re.compile(r"docs/(?:benchmarks\.md|pictures/\w+\.svg)$")
LINKS = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def missing_paths(page: Path) -> set[str]:
    text = page.read_text()
    named = {match for match in PATHS.findall(text) if not (PROJECT / match).exists()}
    links = {link: (page.parent / link).resolve() for link in LINKS.findall(text)}
    return named | {link for link, path in links.items() if not path.exists() and not MADE.search(path.as_posix())}


def python_blocks(page: Path) -> list[str]:
    return [block.text for block in blocks(page.read_text()) if block.language == "python"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_exist(page: Path) -> None:
    assert not missing_paths(page)


def test_a_missing_path_is_noticed(tmp_path: Path) -> None:
    """Planted fault: a page that outlived its subject."""
    page = tmp_path / "page.md"
    page.write_text("see src/samebits/gone.py and [this](gone.md)")
    assert missing_paths(page) == {"src/samebits/gone.py", "gone.md"}


def test_make_targets_exist() -> None:
    rules = set(re.findall(r"^([\w-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"`make ([\w-]+)`|(?:\$|&&) make ([\w-]+)", page.read_text()):
            assert "".join(target) in rules, f"{page.name}: make {''.join(target)}"


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=name_of)
def test_python_runs(page: Path) -> None:
    """The Python blocks of a page, one after the other, in one namespace."""
    namespace: dict[str, object] = {}
    for block in python_blocks(page):
        exec(compile(block, str(page), "exec"), namespace)
    assert namespace


def test_the_readme_opens_with_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bits are replayed by tests/goldens; here the recorded ones stand in for them."""
    recorded = portable.read()
    monkeypatch.setattr(portable, "digests_of", lambda group, *_: recorded[group])
    with pytest.raises(SystemExit) as ended:
        main(["check", "--portable"])
    first = blocks((PROJECT / "README.md").read_text())[0].text
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert ended.value.code == 0
    assert [line.rstrip() for line in first.splitlines()] == ["$ samebits check --portable", *printed]
