"""The command `samebits`: parse, one call, print.

Exit codes: 0 holds, 1 does not hold, 2 wrong usage, 3 could not be judged.
Knows how things are said, and computes nothing that a floor below could."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import samebits
from samebits.cli.commands.bench import bench
from samebits.cli.commands.check import check
from samebits.cli.commands.contract import app as contract
from samebits.cli.commands.debug import debug
from samebits.cli.commands.demo import demo
from samebits.cli.commands.diff import diff
from samebits.cli.commands.distill import distill
from samebits.cli.commands.doctor import doctor
from samebits.cli.commands.evaluate import evaluate
from samebits.cli.commands.generate import generate
from samebits.cli.commands.launch import launch
from samebits.cli.commands.merge import merge
from samebits.cli.commands.plan import plan
from samebits.cli.commands.profile import profile
from samebits.cli.commands.prune import prune
from samebits.cli.commands.quantize import quantize
from samebits.cli.commands.report import app as report
from samebits.cli.commands.reveal import reveal
from samebits.cli.commands.rl import rl
from samebits.cli.commands.serve import serve
from samebits.cli.commands.sim import app as sim
from samebits.cli.commands.tokenizer import app as tokenizer
from samebits.cli.commands.train import train
from samebits.cli.errors import end, wants_json

app = typer.Typer(
    name="samebits",
    help="The same bits, whatever the batch, the split or the number of ranks. Judge an operator, reveal its order.",
    epilog="Exit codes: 0 holds, 1 does not hold, 2 wrong usage, 3 could not be judged.",
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"samebits {samebits.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """What goes before a command; the help text is the app's own."""


_COMMANDS = (
    *(check, reveal, doctor, demo),
    *(plan, train, distill, rl),
    *(merge, prune, quantize, evaluate),
    *(generate, serve),
    *(profile, bench, debug, diff),
)
for _command in _COMMANDS:
    app.command()(_command)
# Words behind the command are the command's own.
app.command(context_settings={"allow_interspersed_args": False})(launch)
app.add_typer(contract, name="contract")
app.add_typer(tokenizer, name="tokenizer")
app.add_typer(sim, name="sim")
app.add_typer(report, name="report")


def _flow(commands: typer.Typer) -> None:
    """A paragraph of a docstring is broken where an editor ends; on a screen it is broken where that ends."""
    for command in commands.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _flow(group.typer_instance)


_flow(app)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line; a caller's mistake is one line on stderr, and with --json a document on stdout."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # A user's own module lies where the command is run.
    sys.path.insert(0, os.getcwd())
    try:
        code = app(given or ["--help"], prog_name="samebits", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as ended:
        # click and rich end with 1 where the reader of a pipe has gone, which would read "does not hold".
        if isinstance(ended.__context__, BrokenPipeError):
            end(ended.__context__, as_json=False)
        raise
    except (Exception, KeyboardInterrupt) as error:
        end(error, as_json=wants_json(given))
    sys.exit(code or 0)
