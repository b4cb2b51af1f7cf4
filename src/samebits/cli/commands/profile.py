"""`samebits profile`: where the time of a training run or of a script goes, by kernel, block and transfer."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from samebits.cli.console import Json, output, print_json, printable, progress
from samebits.cli.devices import check_device
from samebits.records.plain_file import refuse_unless_plain
from samebits.records.shipped import recipe

if TYPE_CHECKING:
    from samebits.trace.summary import Row, Summary
    from samebits.train.configuration import TrainConfig

SCHEMA = "samebits.profile/1"
# Rows of a table; the files hold all of them.
SHOWN = 12
# The exit code of a shell's command that was interrupted.
INTERRUPTED = 130


def profile(
    subject: Annotated[
        str, typer.Argument(metavar="CONFIG|SCRIPT.py", help="A training configuration, a recipe's name, or a script.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a training run.")] = 3,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--output", help="Write trace.json (for chrome://tracing, Perfetto) and trace.jsonl.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Record every kernel, block and transfer of a training run or of a script, and say where the time went.

    Example: [bold]samebits profile tiny --steps 3 --output traces[/bold]"""
    import torch

    from samebits import trace
    from samebits.trace.modules import modules_as_spans
    from samebits.trace.summary import summary
    from samebits.trace.transfers import transfers

    # What is wrong with the subject is said before a file is opened.
    config = None if subject.endswith(".py") else _configuration(recipe(Path(subject)), settings or [])
    if config is None:
        _check_script(Path(subject))
    memory, code = trace.Memory(), 0
    sinks: list[trace.Sink] = [memory]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("trace.json", "trace.jsonl"):
            refuse_unless_plain(folder / name)
        sinks += [trace.ChromeTrace(folder / "trace.json"), trace.JsonLines(folder / "trace.jsonl")]
    with progress(f"profiling {subject}"), ExitStack() as stack:
        stack.enter_context(trace.recording(*sinks))
        stack.enter_context(modules_as_spans())
        if torch.cuda.is_available():
            stack.enter_context(transfers())
        try:
            if config is None:
                code = _script(Path(subject), arguments or [], as_json)
            else:
                _training(config, steps)
        except KeyboardInterrupt:
            # Who has seen enough wants to see what there is.
            code = INTERRUPTED
    found = summary(memory.spans, memory.events)
    if as_json:
        print_json({"schema": SCHEMA, "subject": subject, **found.document()})
    else:
        _print(found, folder)
    raise typer.Exit(code)


def _check_script(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; allowed: a Python script, a configuration or a recipe")
    try:
        compile(path.read_bytes(), str(path), "exec")
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}; allowed: a Python script") from error


def _script(path: Path, arguments: list[str], as_json: bool) -> int:
    """The script as `python script.py` would run it, in this process; the exit code that it would have there.

    However it ends, what was recorded until then is shown. What it prints goes to stderr where stdout is a document."""
    from samebits.sim.programs import command_line

    where = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    process = os.getpid()
    with command_line(str(path), arguments), where:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            if os.getpid() != process:
                # A process that the script forked ends as it would there: the profile is not its to show.
                raise
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except Exception as error:
            # Its own calls alone, as Python shows them: not ours and runpy's, which are outside.
            calls = error.__traceback__
            while calls is not None and calls.tb_frame.f_code.co_filename != str(path):
                calls = calls.tb_next
            traceback.print_exception(error.with_traceback(calls))
            if os.getpid() != process:
                raise SystemExit(1) from None
            return 1
    if os.getpid() != process:
        raise SystemExit(0)
    return 0


def _configuration(path: Path, settings: list[str]) -> TrainConfig:
    from samebits.train.configuration_file import read

    config = read(path, settings)
    check_device("training.device", config.training.device)
    return config


def _training(config: TrainConfig, steps: int) -> None:
    """Some steps of a run, of which nothing is kept."""
    from samebits.trace import span
    from samebits.train.assessment import data_of, model_of
    from samebits.train.trainer import Trainer

    trainer = Trainer(config, model_of(config), data_of(config))
    for _ in range(min(steps, trainer.run.steps)):
        with span(f"step {trainer.done + 1}", "step"):
            trainer.step()


def _print(found: Summary, folder: Path | None) -> None:
    out = output()
    if not found.rows:
        out.print("nothing was recorded: no operator of samebits was called, no module and no step ran")
    for granularity in ("step", "block", "kernel"):
        rows = found.of(granularity)
        if rows:
            out.print(_table(granularity, rows))
    for kind, (count, size) in found.transfers.items():
        out.print(f"transfer {kind}: {count} times, {size:,} bytes")
    if folder is not None:
        out.print(f"written: {folder / 'trace.json'}, {folder / 'trace.jsonl'}")


def _table(granularity: str, rows: list[Row]) -> Table:
    table = Table(title=f"{granularity}s" if len(rows) <= SHOWN else f"{granularity}s, {SHOWN} of {len(rows)}")
    table.add_column(granularity, overflow="fold")
    for name in ("count", "ms", "own ms", "share", "GB/s", "GFLOP/s"):
        table.add_column(name, justify="right")
    for row in rows[:SHOWN]:
        speeds = (row.gigabytes_per_second, row.gigaflops_per_second)
        shown = ("" if each is None else f"{each:.1f}" for each in speeds)
        numbers = (f"{row.milliseconds:.2f}", f"{row.own_milliseconds:.2f}", f"{row.share:.1%}", *shown)
        table.add_row(printable(row.name), str(row.count), *numbers)
    return table
