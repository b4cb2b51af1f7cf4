"""`samebits report`: a training run as one page, and two runs beside each other."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.commands.diff import diff
from samebits.cli.console import output

app = typer.Typer(
    help="A training run as one page; two runs beside each other.", no_args_is_help=True, rich_markup_mode="rich"
)
PAGE = "report.html"
Evidence = Annotated[
    bool,
    typer.Option(
        "--evidence/--no-evidence", help="Orders, promises and contracts that the run rests on: some seconds."
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run.")]


@app.command()
def write(
    run: Run,
    page: Annotated[
        Path | None, typer.Option("--output", help=f"Where to; {PAGE} in the run's folder if not said.")
    ] = None,
    evidence: Evidence = True,
) -> None:
    """Write the run's page: curves, alarms, where time went, settings, digests, what it rests on. It needs no network.

    A recorded step (samebits train --trace-steps, or a trace.jsonl of samebits profile --output put into the folder)
    adds kernels, blocks and a flame view.

    Example: [bold]samebits report write runs/tiny[/bold]"""
    output().print(str(_written(run, page, evidence)))


@app.command("open")
def open_page(run: Run, evidence: Evidence = True) -> None:
    """Write the run's page and open it in a browser. Example: [bold]samebits report open runs/tiny[/bold]"""
    path = _written(run, None, evidence)
    output().print(str(path))
    if not webbrowser.open(path.resolve().as_uri()):
        output().print("no browser was found; open the file by hand")


app.command("diagnose")(diff)


def _written(run: Path, page: Path | None, evidence: bool) -> Path:
    from samebits.cli.run_page import render
    from samebits.records.plain_file import refuse_unless_plain

    path = page or run / PAGE
    refuse_unless_plain(path)
    text = render(run, with_evidence=evidence)
    beside = path.with_name(f"{path.name}.part")
    # Half a surrogate, which JSON can hold and UTF-8 cannot, is shown as its code.
    beside.write_text(text, encoding="utf-8", errors="backslashreplace")
    beside.replace(path)
    return path
