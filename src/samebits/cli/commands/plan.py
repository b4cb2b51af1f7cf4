"""`samebits plan`: what a training run comes to, and what is refused, before a step is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from samebits.cli.console import Json, output, print_json, progress, size_text
from samebits.records.shipped import recipe

if TYPE_CHECKING:
    from samebits.train.assessment import Assessment
    from samebits.train.configuration import TrainConfig

SCHEMA = "samebits.plan/1"

Source = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", callback=recipe, help="A YAML file, or the name of a recipe that comes with samebits: tiny."
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key, e.g. training.seed=1.")
]


def plan(config: Source, settings: Settings = None, as_json: Json = False) -> None:
    """Work out a training run before it starts: steps, warm-up, tokens, memory. Exit 1 where it is refused.

    Example: [bold]samebits plan tiny --set training.max_steps=200[/bold]"""
    # Loaded here: other commands need not wait for it.
    from samebits.train.assessment import assess, data_of, shape_of
    from samebits.train.configuration_file import read

    with progress(f"reading {config}") as tell:
        chosen = read(config, settings or [])
        tell("counting sequences")
        # A number that the configuration declares is enough for a plan; the data may lie on another machine.
        data = None if chosen.data.num_sequences is not None else data_of(chosen)
        assessment = assess(chosen, shape_of(chosen), data)
    if as_json:
        print_json({"schema": SCHEMA, "config": str(config), **assessment.as_dict()})
    else:
        print_assessment(chosen, assessment)
    raise typer.Exit(0 if assessment.allowed else 1)


def print_assessment(config: TrainConfig, assessment: Assessment) -> None:
    """The table, then waivers and refusals, each with what to change."""
    console = output()
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in _rows(config, assessment):
        table.add_row(*row)
    console.print(table)
    for refusal in assessment.waived:
        console.print(Text(f"WAIVED {refusal}", style="bold yellow"))
    for refusal, change in zip(assessment.refusals, assessment.changes, strict=True):
        console.print(Text(f"refused {refusal}", style="bold red"))
        console.print(Text(f"  change: {change}", style="dim"))
    console.print(Text("allowed", style="green") if assessment.allowed else Text("refused", style="bold red"))


def _rows(config: TrainConfig, assessment: Assessment) -> list[tuple[str, str, str]]:
    plan, run, memory = assessment.plan, assessment.run, assessment.memory
    peak, reached = assessment.rates()
    asked = f"{plan.max_steps:,}" if plan.max_steps is not None else "all"
    cut = f"{plan.micro_batch_size} x {plan.gradient_accumulation_steps}, {config.training.lanes} lanes"
    here = "not judged: no such device here" if memory.here is None else f"of {size_text(memory.here)}"
    repeats = f"{run.steps / run.per_epoch:.2f}" if run.per_epoch else "-"
    return [
        ("sequences", f"{plan.num_sequences:,}", f"{run.dropped:,} dropped an epoch"),
        ("sequences an update", f"{config.training.global_batch_size:,}", cut),
        ("steps an epoch", f"{run.per_epoch:,}", ""),
        ("steps reachable", f"{run.reach:,}", f"{plan.num_train_epochs:,} epochs"),
        ("steps asked", asked, f"the run makes {run.steps:,}"),
        ("warm-up", f"{plan.warmup_steps:,}", f"{plan.warmup_steps / run.steps:.1%} of the steps" if run.steps else ""),
        ("peak rate", f"{peak:.3g}", f"the highest used is {reached:.3g}"),
        ("tokens", f"{run.tokens:,}", f"{run.per_step:,} a step"),
        ("parameters", f"{run.parameters:,}", f"{run.tokens / run.parameters:.2f} tokens each"),
        ("repeats of the data", repeats, f"at most {plan.max_repeats} allowed"),
        ("memory, about", size_text(memory.total), here),
        ("  weights", size_text(memory.weights), ""),
        ("  moments", size_text(memory.moments), ""),
        ("  gradients", size_text(memory.gradients), ""),
        ("  activations", size_text(memory.activations), "of one micro-batch"),
    ]
