"""How the commands print: results on stdout, progress on stderr, one JSON document on request.

Knows no command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

# Where output goes to a file, lines are cut for no screen.
FILE_WIDTH = 160
VERDICT_STYLES = {"holds": "green", "does not hold": "bold red", "could not be judged": "yellow"}

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def output() -> Console:
    """Results. Text is printed as it is: brackets are indexes here, not markup."""
    return Console(markup=False, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else FILE_WIDTH)


def printable(text: str) -> str:
    """Names that a file or a script gave, for a terminal: a control character as its code, that none moves the cursor
    or begins a line that looks like ours."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


@contextmanager
def progress(start: str, *, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is going on; silent where stderr is no terminal.

    With `lines`, for what takes many minutes: there a line each time, so that a log shows how far it is."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield lambda text: print(text, file=sys.stderr, flush=True) if lines else None
        return
    with console.status(start) as status:
        yield lambda text: status.update(text)


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that is told how much more is done; silent where stderr is no terminal."""
    console = Console(stderr=True, markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        task = shown.add_task(label, total=total)
        yield lambda more: shown.advance(task, more)


def size_text(count: int) -> str:
    """Bytes as people read them."""
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))
