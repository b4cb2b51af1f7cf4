"""`samebits distill`: a student trained on a teacher's logits, with all that `samebits train` promises."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from samebits.cli.commands.plan import Settings, Source, print_assessment
from samebits.cli.commands.train import AllowChanges, Export, Resume, print_summary, stopped
from samebits.cli.console import Json, output, print_json, progress
from samebits.cli.devices import check_device
from samebits.cli.errors import between_ranks

if TYPE_CHECKING:
    from torch import Tensor

    from samebits.train.distill_running import Prepared
    from samebits.train.running import Summary

SCHEMA = "samebits.distill/1"
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and end; nothing is written.")]


def distill(
    config: Source,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for checkpoints and events; not for --dry-run.")
    ] = None,
    resume: Resume = False,
    allow_changes: AllowChanges = None,
    exported: Export = None,
    dry_run: DryRun = False,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Train a student on alpha * T^2 * KL(teacher || student) + (1 - alpha) * cross-entropy.

    The teacher computes at every step, or its logits are kept in a folder first and read from there. Under
    `samebits launch` or torchrun the lanes are shared by all ranks, with the bits of one.

    Example: [bold]samebits distill distill_smollm2 --out runs/student[/bold], and after an interruption the same with
    [bold]--resume[/bold]"""
    # Loaded here: other commands need not wait for it.
    from samebits.parallel.grid import Grid
    from samebits.parallel.launching import ranks
    from samebits.records.new_place import refuse_if_taken
    from samebits.train.display import on_stderr
    from samebits.train.distill_configuration import read
    from samebits.train.distill_running import distill as train
    from samebits.train.distill_running import prepare
    from samebits.train.exporting import export
    from samebits.train.running import RefusedError
    from samebits.train.watch import BreachError

    if out is None and not dry_run:
        raise ValueError("distill: --out is missing; allowed: a folder for checkpoints, or --dry-run")
    if allow_changes and not resume:
        raise ValueError("distill: --allow-changes requires --resume")
    if exported is not None:
        refuse_if_taken(exported, "--export")
    chosen = read(config, settings or [])
    check_device("training.device", chosen.training.device)
    with ranks(device=chosen.training.device.partition(":")[0], tell=between_ranks(as_json)) as world:
        with progress("loading teacher and data") if world.rank == 0 else nullcontext():
            prepared = prepare(chosen)
        if out is None or dry_run or not prepared.assessment.allowed:
            if world.rank == 0:
                _print_plan(config, prepared, as_json)
            raise typer.Exit(0 if prepared.assessment.allowed else 1)
        try:
            with on_stderr(chosen.monitoring.logging_steps) if world.rank == 0 else nullcontext(None) as screen:
                summary = train(
                    prepared,
                    out,
                    resume=resume,
                    allow_changes=allow_changes or [],
                    screen=screen,
                    grid=Grid(world=world),
                )
        except RefusedError as refused:
            raise typer.Exit(1) from refused
        except BreachError as breach:
            stopped(out, str(breach), 1, as_json)
            raise typer.Exit(1) from breach
        except KeyboardInterrupt as interrupt:
            stopped(out, "interrupted", 3, as_json)
            raise typer.Exit(3) from interrupt
        if world.rank == 0:
            if exported is not None:
                export(chosen, out, exported, partial(_described, prepared, summary))
            if as_json:
                print_json({"schema": SCHEMA, "config": str(config), **asdict(summary), "teacher": prepared.facts()})
            else:
                print_summary(summary)
                _print_teacher(prepared.facts())


def _described(
    prepared: Prepared, summary: Summary, folder: Path, weights: Mapping[str, Tensor]
) -> Mapping[str, bytes]:
    """The model card and the manifest of the student."""
    from samebits.post.source import weights_digest
    from samebits.post.trained import described

    teacher, section = prepared.facts(), prepared.config.distillation
    told = {"steps": summary.steps, "checkpoint": summary.digest, "teacher": teacher["digest"]}
    facts = {
        "command": "distill",
        "settings": {"config": asdict(prepared.config), **told},
        "sources": {teacher["model"]: {"digest": weights_digest(prepared.teacher.weights)}},
    }
    alpha, temperature = section.alpha, section.temperature
    loss = f"{alpha} * {temperature}^2 * KL(teacher || student) + (1 - {alpha}) * cross-entropy"
    said = f"A student of `{teacher['model']}`, after {summary.steps} updates on `{loss}`."
    return described(folder, weights, facts, "Distilled model", said, ["distillation"])


def _print_plan(config: Path, prepared: Prepared, as_json: bool) -> None:
    if as_json:
        document = {"schema": SCHEMA, "config": str(config), "dry_run": True, **prepared.assessment.as_dict()}
        print_json({**document, "teacher": prepared.facts()})
        return
    print_assessment(prepared.config, prepared.assessment)
    _print_teacher(prepared.facts())


def _print_teacher(facts: dict[str, Any]) -> None:
    console = output()
    console.print(Text(f"teacher {facts['model']}: {facts['parameters']:,} parameters, {facts['digest']}"))
    if facts["logits"] == "live":
        console.print("teacher logits: computed at every step")
        return
    form, held, missing = facts["form"], facts["held"], facts["missing"]
    kept = "all" if form["top_k"] is None else f"the {form['top_k']} largest and the remainder"
    error = "exact" if facts["exact"] else f"a probability is off by at most {held['largest_error']:.2g}"
    console.print(Text(f"teacher logits in {facts['logits']}: {kept}, {form['dtype']}; {error}"))
    console.print(Text(f"  {held['shards']} shards held, {held['bytes']:,} bytes"))
    if missing["sequences"]:
        console.print(Text(f"  {missing['sequences']:,} sequences missing, about {missing['bytes']:,} bytes"))
