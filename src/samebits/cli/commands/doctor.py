"""`samebits doctor`: what this machine is, which backends can run on it, and why the others cannot."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from samebits import native
from samebits.checker.environment import environment, native_problem, unavailable
from samebits.cli.console import Json, output, print_json
from samebits.contracts.language import BACKENDS

SCHEMA = "samebits.doctor/1"


def doctor(as_json: Json = False) -> None:
    """Say what this machine can run. Exit 1 where the native library is missing or stale.

    Example: [bold]samebits doctor[/bold]"""
    problem = native_problem()
    facts = {**environment(), "compiled by": "unknown" if problem else native.compiler()}
    lacks = {backend: unavailable(backend, room=True) for backend in BACKENDS}
    if as_json:
        backends = {backend: {"runs": not lack, "reason": lack} for backend, lack in lacks.items()}
        print_json({"schema": SCHEMA, "machine": facts, "backends": backends})
    else:
        _print(facts, lacks)
    raise typer.Exit(1 if problem else 0)


def _print(facts: dict[str, str], lacks: dict[str, str]) -> None:
    console = output()
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    for backend, lack in lacks.items():
        words = Text(f"cannot run: {lack}", style="yellow") if lack else Text("runs", style="green")
        table.add_row(f"backend {backend}", words)
    console.print(table)
