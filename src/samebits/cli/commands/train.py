"""`samebits train`: a run into a folder, refused where its plan is, shown while it goes on, resumed after a kill."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.cli.commands.plan import Settings, Source, print_assessment
from samebits.cli.console import Json, output, print_json
from samebits.cli.devices import check_device
from samebits.cli.errors import between_ranks, tell

if TYPE_CHECKING:
    from samebits.train.assessment import Assessment
    from samebits.train.configuration import TrainConfig
    from samebits.train.running import Summary

SCHEMA = "samebits.train/1"
Out = Annotated[Path, typer.Option("--out", help="The folder for checkpoints and events.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the newest complete checkpoint.")]
AllowChanges = Annotated[
    list[str] | None, typer.Option(metavar="KEY", help="A setting that may differ from the checkpoint's.")
]
Export = Annotated[
    Path | None, typer.Option("--export", help="At the end, write the model here in Hugging Face's layout.")
]
Tensor = Annotated[
    int, typer.Option(help="Ranks that hold one copy of the weights between them; a divisor of the number of ranks.")
]


TraceSteps = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Record the kernels and blocks of every N-th step into OUT/traces; 0: of none."
    ),
]


def train(
    config: Source,
    out: Out,
    resume: Resume = False,
    allow_changes: AllowChanges = None,
    exported: Export = None,
    tensor: Tensor = 1,
    settings: Settings = None,
    trace_steps: TraceSteps = 0,
    as_json: Json = False,
) -> None:
    """Train a model. What `samebits plan` refuses is refused here, before a step is spent; a broken contract stops it.

    Under `samebits launch` or torchrun the lanes are shared by all ranks, with the bits of one.

    Example: [bold]samebits train tiny --out runs/tiny[/bold], and after an interruption the same with
    [bold]--resume[/bold]"""
    # Loaded here: other commands need not wait for it.
    from samebits.parallel.grid import Grid
    from samebits.parallel.launching import ranks
    from samebits.records.new_place import refuse_if_taken
    from samebits.train.configuration_file import read
    from samebits.train.display import on_stderr
    from samebits.train.exporting import export
    from samebits.train.running import RefusedError, run
    from samebits.train.watch import BreachError

    if allow_changes and not resume:
        raise ValueError("train: --allow-changes requires --resume")
    if exported is not None:
        refuse_if_taken(exported, "--export")
    chosen = read(config, settings or [])
    check_device("training.device", chosen.training.device)
    with ranks(device=chosen.training.device.partition(":")[0], tell=between_ranks(as_json)) as world:
        grid = Grid(world=world, tensor=tensor)
        try:
            with on_stderr(chosen.monitoring.logging_steps) if world.rank == 0 else nullcontext(None) as screen:
                summary = run(
                    chosen,
                    out,
                    resume=resume,
                    allow_changes=allow_changes or [],
                    screen=screen,
                    grid=grid,
                    trace_steps=trace_steps,
                )
        except RefusedError as refused:
            if world.rank == 0:
                _refused(config, chosen, refused.assessment, as_json)
            raise typer.Exit(1) from refused
        except BreachError as breach:
            stopped(out, str(breach), 1, as_json)
            raise typer.Exit(1) from breach
        except KeyboardInterrupt as interrupt:
            stopped(out, "interrupted", 3, as_json)
            raise typer.Exit(3) from interrupt
        if world.rank == 0:
            if exported is not None:
                export(chosen, out, exported)
            if as_json:
                print_json({"schema": SCHEMA, "config": str(config), **asdict(summary)})
            else:
                print_summary(summary)


def _refused(config: Path, chosen: TrainConfig, assessment: Assessment, as_json: bool) -> None:
    if as_json:
        print_json({"schema": SCHEMA, "config": str(config), **assessment.as_dict()})
    else:
        print_assessment(chosen, assessment)


def stopped(folder: Path, why: str, code: int, as_json: bool) -> None:
    """One line: why, and from where the run can go on."""
    from samebits.train.checkpoint import committed

    steps = committed(folder) if folder.is_dir() else []
    kept = f"the last checkpoint is step {steps[-1]}" if steps else "no checkpoint was due yet"
    tell(f"{why}; {kept}", code, as_json=as_json, kind="stopped")


def print_summary(summary: Summary) -> None:
    console = output()
    for obligation in summary.waived:
        console.print(f"WAIVED {obligation}", style="bold yellow")
    began = f", from step {summary.resumed_from}" if summary.resumed_from else ""
    loss = "-" if summary.loss is None else f"{summary.loss:.4f}"
    console.print(f"{summary.steps} steps{began}: loss {loss}, {summary.tokens:,} tokens in {summary.seconds:.1f} s")
    console.print(f"{summary.folder}: {summary.digest}")
