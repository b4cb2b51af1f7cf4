"""`samebits launch`: a command on some ranks of this machine; the first to fail ends the others and is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.cli.console import Json, print_json

if TYPE_CHECKING:
    from samebits.parallel.launching import Outcome

SCHEMA = "samebits.launch/1"
# The commands whose ranks work together. Of any other there would be so many copies, which write to one place at once.
ON_RANKS = ("debug", "distill", "generate", "rl", "train")


def launch(
    nproc: Annotated[int, typer.Option("--nproc", help="How many ranks: one process each, on this machine.")],
    timeout: Annotated[float, typer.Option(help="Seconds after which a rank that did not come is an error.")] = 60.0,
    host: Annotated[
        str, typer.Option(help="The rendezvous address of this machine; any but loopback is reachable from outside.")
    ] = "127.0.0.1",
    as_json: Json = False,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND", help=f"After --: {', '.join(ON_RANKS)}, a file.py, or -m and a module, and their words."
        ),
    ] = None,
) -> None:
    """Run a command on some ranks. Rank 0 is shown as it is; of the others stderr, each line with its rank, and
    stdout only where they fail. With --json, rank 0's stdout goes to stderr.

    The exit code is that of the rank that failed first (128 + n: signal n killed it), and the last line says which.

    Example: [bold]samebits launch --nproc 2 -- train tiny --out runs/tiny[/bold]"""
    from samebits.parallel.launching import launch as launch_ranks
    from samebits.parallel.launching_processes import Screen

    screen = Screen(documents=as_json)
    outcome = launch_ranks(arguments(command or []), nproc, timeout=timeout, screen=screen, host=host)
    if as_json:
        print_json(_document(command or [], outcome))
    if outcome.message:
        print(f"samebits: {outcome.message}", file=sys.stderr)
    raise typer.Exit(outcome.code)


def arguments(command: list[str]) -> list[str]:
    """The words that start one rank."""
    allowed = f"allowed: {', '.join(ON_RANKS)}, a file.py, or -m and a module"
    if not command:
        raise ValueError(f"launch: missing command after --; {allowed}")
    first = command[0]
    if first == "-m" and len(command) > 1:
        return [sys.executable, *command]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise ValueError(f"launch: {first} is no file; {allowed}")
        return [sys.executable, *command]
    if first not in ON_RANKS:
        raise ValueError(f"launch: command is {first!r}; {allowed}")
    return [sys.executable, "-m", "samebits.cli", *command]


def _document(command: list[str], outcome: Outcome) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "command": command,
        "code": outcome.code,
        "message": outcome.message,
        "first": None if outcome.first is None else outcome.first.rank,
        "ranks": [
            {
                "rank": each.rank,
                "code": each.code,
                "how": each.how,
                "ended_by_launcher": each.asked,
                "seconds": round(each.seconds, 3),
                "last_line": each.words,
            }
            for each in outcome.ranks
        ],
    }
