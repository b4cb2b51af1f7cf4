"""The documents are true: every path they name exists, every command they show runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md"), *PROJECT.glob("benchmarks/*.md")])
PATHS = re.compile(r"(?<![\w/])(?:src|docs|tests|benchmarks|goldens|examples)/[\w./-]*\w")
LINKS = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
# Set-up and whole-suite commands; a test that ran them would run itself.
NOT_RUN = ("make ", "pip ", "git ", "python benchmarks/gpu")


def missing_paths(page: Path) -> set[str]:
    text = page.read_text()
    named = {match for match in PATHS.findall(text) if not (PROJECT / match).exists()}
    return named | {link for link in LINKS.findall(text) if not (page.parent / link).exists()}


def commands(page: Path) -> list[str]:
    """Lines of `console` blocks that start with a prompt."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line[2:].strip() for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line for line in lines if not line.startswith(NOT_RUN)]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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
        for target in re.findall(r"`make ([\w-]+)`|\$ make ([\w-]+)", page.read_text()):
            assert "".join(target) in rules, f"{page.name}: make {''.join(target)}"


SHOWN = sorted({command for page in PAGES for command in commands(page)})


@pytest.mark.parametrize("command", SHOWN)
def test_commands_run(command: str, tmp_path: Path) -> None:
    """Exit 0 or 1: shown commands answer "holds" or "does not hold", never "wrong usage" or "could not be judged"."""
    words = shlex.split(command.split(" #")[0])
    if words[0] == "samebits":
        words = [sys.executable, "-m", "samebits.cli", *words[1:]]
    elif words[0] == "python":
        words = [sys.executable, *words[1:]]
    run = subprocess.run(
        words, cwd=PROJECT if "examples" in command else tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode in (0, 1), f"{command}: {run.returncode}\n{run.stdout}\n{run.stderr}"
    assert "Traceback" not in run.stderr, f"{command}: {run.stderr}"


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name)
def test_python_runs(page: Path) -> None:
    """The Python blocks of a page, one after the other, in one namespace."""
    namespace: dict[str, object] = {}
    for block in python_blocks(page):
        exec(compile(block, str(page), "exec"), namespace)
    assert namespace
