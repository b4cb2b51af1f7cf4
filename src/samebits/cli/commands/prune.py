"""`samebits prune`: a model with part of its weights set to zero."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.cli.commands.merge import DryRun, Out, ShardSize
from samebits.cli.commands.quantize import TOKENS, Calibration, Source, calibrated
from samebits.cli.console import Json, output, print_json, progress, progress_bar, size_text

if TYPE_CHECKING:
    from samebits.post.pruning import Job

SCHEMA = "samebits.prune/1"


def prune(
    model: Source,
    out: Out,
    method: Annotated[
        str, typer.Option(help="magnitude, or wanda: magnitude times the norm of what flows in.")
    ] = "wanda",
    sparsity: Annotated[float, typer.Option(help="The share of each group that becomes zero.")] = 0.5,
    pattern: Annotated[bool, typer.Option("--2-4", help="Two of every four neighbours.")] = False,
    dtype: Annotated[str, typer.Option(help="Of the result: float32, bfloat16 or float16.")] = "bfloat16",
    calibration: Calibration = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of calibration, at most: 8192 if left out.", min=512)
    ] = None,
    shard_size: ShardSize = 5 * 10**9,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Prune the linear weights of a model; exactly the stated share of each row (wanda) or matrix (magnitude).

    After a kill it goes on when it is run again; the folder is there once it is whole.

    Example: [bold]samebits prune smollm2 --sparsity 0.5 --out sparse[/bold]"""
    from samebits.model.loading import load
    from samebits.post.pruning import Job
    from samebits.post.pruning import prune as run
    from samebits.records.new_place import refuse_if_taken

    for option, given in (("--calibration", calibration), ("--tokens", tokens)):
        if given and method != "wanda":
            raise ValueError(f"prune: {option} requires --method wanda")
    refuse_if_taken(out)
    with progress(f"loading {model}"):
        loaded = load(model)
        job = Job(source=model, loaded=loaded, method=method, sparsity=sparsity, pattern=pattern, dtype=dtype)
        layout = job.layout(shard_size)
    if dry_run:
        _print_plan(job, out, layout.sizes, as_json)
        return
    if method == "wanda":
        squares, taken = calibrated(loaded, calibration, tokens or TOKENS["search"])
        job = replace(job, squares=squares, calibration=taken)
    with progress_bar(f"pruning into {out}", sum(each.size for each in layout.regions.values())) as tell:
        facts = run(job, out, shard_size, tell)
    if as_json:
        print_json({"schema": SCHEMA, "out": str(out), **facts})
    else:
        output().print(f"{out}: {facts['zeros']:,} of {facts['pruned_weights']:,} weights are zero, {facts['digest']}")


def _print_plan(job: Job, out: Path, files: dict[str, int], as_json: bool) -> None:
    weights = {name: job.thinned(name) for name in job.loaded.model.weights}
    if as_json:
        told = {"settings": job.settings(), "files": files, "pruned": weights}
        print_json({"schema": SCHEMA, "out": str(out), "dry_run": True, **told})
        return
    console = output()
    for name, thinned in weights.items():
        how = f"{job.method} {job.sparsity:g}" if thinned else "as it is"
        console.print(f"  {name}  {list(job.loaded.model.weights[name].shape)}  {how}")
    for name, size in files.items():
        console.print(f"{out / name}: {size_text(size)}")
