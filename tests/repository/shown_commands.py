"""The commands that documents show, the one exit code that each must end with, and the parser that judges their words.

A command stands on a line of its own in a block. A comment behind it that begins with `exit 1` says the code, else it
is 0; `exit 0; without a GPU exit 3` says both. Runs nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from tests.repository.documents import PAGES, Block, blocks, inline_code, name_of

from samebits import checker
from samebits.cli import app

PROGRAMS = ("samebits", "python", "torchrun", "make", "git", "pip", "lm_eval", "PYTHONPATH=src")
_LINE = re.compile(rf"^(?:\$ )?((?:{'|'.join(PROGRAMS)}) .*)$", re.MULTILINE)
_EXIT = re.compile(r"exit (\d)(?:; without a GPU exit (\d))?(?:: .*)?")


@dataclass(frozen=True, slots=True)
class Shown:
    """A command and the code that it ends with, here and where there is no GPU."""

    words: str
    code: int
    without_gpu: int

    def expected(self, gpu: bool) -> int:
        return self.code if gpu else self.without_gpu


def read(line: str) -> Shown:
    words, _, comment = (part.strip() for part in line.partition(" #"))
    if not comment.startswith("exit"):
        return Shown(words, 0, 0)
    said = _EXIT.fullmatch(comment)
    if said is None:
        raise ValueError(f"{line!r}: the comment cannot be read; allowed: exit 1, exit 0; without a GPU exit 3")
    code = int(said[1])
    return Shown(words, code, int(said[2] or code))


def commands_of(found: Sequence[Block]) -> list[Shown]:
    lines = [
        line
        for block in found
        if block.language in ("console", "text")
        for line in _LINE.findall(block.text.replace("\\\n", " "))
    ]
    return [read(line) for line in lines]


def all_shown() -> dict[Shown, list[str]]:
    """Every command once, and the pages that show it."""
    found: dict[Shown, list[str]] = {}
    for page in PAGES:
        for command in commands_of(blocks(page.read_text())):
            found.setdefault(command, []).append(name_of(page))
    return found


def mentioned() -> set[str]:
    """Commands within sentences."""
    return {code for page in PAGES for code in inline_code(page.read_text()) if code.startswith("samebits ")}


def refusal(words: Sequence[str], *, whole: bool = True) -> str | None:
    """What the real command line has against these words, without running them; a mention need not be whole."""
    group: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(group, "commands"):
        name = rest.pop(0) if rest else ""
        if name not in group.commands:
            return f"no command is called {name!r}"
        group = group.commands[name]
    try:
        context = group.make_context(group.name, rest)
        if group.name == "check":
            _planned(context.params)
    except Exception as error:
        incomplete = type(error).__name__ == "MissingParameter" and not whole
        return None if incomplete else f"{type(error).__name__}: {error}"
    behind = context.params.get("command") if group.name == "launch" else None
    if behind and behind[0] in typer.main.get_group(app).commands:
        return refusal(behind, whole=whole and "..." not in behind)
    return None


def _planned(given: dict[str, Any]) -> None:
    """Operators, promises and backends are looked up as the command does before it begins."""
    for target in given["targets"] or []:
        if ":" not in target and "<" not in target:
            checker.plan(target, given["like"], promises=given["promise"], backend=given["backend"])


def words_of(command: str) -> list[str]:
    return shlex.split(command)
