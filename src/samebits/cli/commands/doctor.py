"""`samebits doctor`: what this machine is, which backends can run on it, and what installs what is missing."""

from __future__ import annotations

import platform
from typing import Final

import typer
from rich.table import Table
from rich.text import Text

from samebits.cli.console import Json, output, print_json
from samebits.records.packages import EXTRAS, remedy
from samebits.records.shipped import checkout

SCHEMA = "samebits.doctor/2"
# Where a package is installed under another name than it is imported by.
DISTRIBUTIONS: Final = {"z3": "z3-solver"}


def doctor(as_json: Json = False) -> None:
    """Say what this machine can run, and what is missing. Exit 1 where the native library is missing or stale.

    Example: [bold]samebits doctor[/bold]"""
    # Loaded here: other commands need not wait for it.
    from samebits import native
    from samebits.checker.environment import environment, installed, native_problem, unavailable
    from samebits.contracts.language import BACKENDS
    from samebits.ops.contracts.host_launch import triton_calls

    problem = native_problem()
    facts = {
        **environment(),
        "architecture": f"{platform.machine()}, {platform.system()}, {' '.join(platform.libc_ver())}",
        "compiled by": "unknown" if problem else native.compiler(),
        "used from": str(checkout() or "a wheel"),
        "launch_in_cpp": triton_calls.state(),
    }
    lacks = {backend: unavailable(backend, component=True) for backend in BACKENDS}
    packages = {name: installed(DISTRIBUTIONS.get(name, name)) for name in EXTRAS}
    if as_json:
        backends = {backend: {"runs": not lack, "reason": lack} for backend, lack in lacks.items()}
        print_json(
            {
                "schema": SCHEMA,
                "machine": facts,
                "backends": backends,
                "packages": {
                    name: {"version": version, "extra": EXTRAS[name], "install": _install(name, version)}
                    for name, version in packages.items()
                },
            }
        )
    else:
        _print(facts, lacks, packages)
    raise typer.Exit(1 if problem else 0)


def _install(name: str, version: str) -> str:
    """The line that installs a package, or "" where it is here."""
    return remedy(name) if version == "not installed" else ""


def _print(facts: dict[str, str], lacks: dict[str, str], packages: dict[str, str]) -> None:
    console = output()
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    for backend, lack in lacks.items():
        words = Text(f"cannot run: {lack}", style="yellow") if lack else Text("runs", style="green")
        table.add_row(f"backend {backend}", words)
    for name, version in packages.items():
        line = _install(name, version)
        table.add_row(
            f"package {name}", Text(f"{version}; {line}" if line else version, style="yellow" if line else "")
        )
    console.print(table)
