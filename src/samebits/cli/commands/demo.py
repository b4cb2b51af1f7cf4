"""`samebits demo`: stock torch and samebits side by side on this machine, on the terminal and as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from samebits.cli.console import Json, output, print_json, progress
from samebits.cli.demonstration import Demonstration, demonstrate
from samebits.cli.page import render
from samebits.numerics.order import digest
from samebits.numerics.picture import describe

SCHEMA = "samebits.demo/1"


def demo(
    out: Annotated[Path, typer.Option(help="Where the page is written.")] = Path("samebits_demo.html"),
    as_json: Json = False,
) -> None:
    """Show that stock torch changes a row's bits with its batch on this machine, and that samebits does not.

    Example: [bold]samebits demo --out samebits_demo.html[/bold]"""
    with progress("measuring") as tell:
        shown = demonstrate(tell)
    try:
        out.write_text(render(shown), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror}") from error
    if as_json:
        print_json({"schema": SCHEMA, "page": str(out), **shown.as_dict()})
    else:
        _print(shown, out)
    raise typer.Exit(0 if shown.kept else 1)


def _print(shown: Demonstration, out: Path) -> None:
    console = output()
    for sweep in shown.sweeps:
        style = "red" if sweep.changed else "green"
        text = Text(f"{sweep.subject:<28} {sweep.format:<9} ")
        text.append(f"{sweep.changed:>5} of {sweep.compared} rows change with their batch", style=style)
        console.print(text)
    if shown.example is not None:
        example = shown.example
        console.print(Text(f"\nfirst difference, {example.subject} {example.case}, row {example.index[0]}:"))
        for words, number in (("alone", example.alone), (f"in a batch of {example.rows}", example.batched)):
            console.print(Text(f"  {words:<18} {number.hexadecimal:<20} {number.pattern}"))
    for subject in shown.orders:
        console.print(Text(f"\n{subject.subject}, {subject.terms} terms, float32:"))
        for group in subject.groups:
            if group.order is not None:
                words = f"{describe(group.order)}  [{digest(group.order)[:12]}]  {group.verdict}"
                console.print(Text(f"  rows {', '.join(group.labels):<14} {words}"))
    console.print(Text(f"\nwritten: {out}", style="dim"))
