"""`samebits quantize`: a model in four or eight bits, as a .gguf file or as safetensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits.cli.commands.merge import DryRun, Out, ShardSize
from samebits.cli.console import Json, output, print_json, progress, progress_bar, size_text

if TYPE_CHECKING:
    from torch import Tensor

    from samebits.model.loading import Loaded
    from samebits.post.feedback import Feedback
    from samebits.post.quantizing import Job

SCHEMA = "samebits.quantize/1"
Source = Annotated[str, typer.Argument(metavar="MODEL", help="A folder with config.json, a .gguf file, or smollm2.")]
Calibration = Annotated[
    list[Path] | None,
    typer.Option(
        "--calibration", metavar="PATH", help="Text files or folders. Default: the Python standard library's sources."
    ),
]
TOKENS = {"search": 8192, "gptq": 16384}


def quantize(
    model: Source,
    out: Out,
    format: Annotated[str, typer.Option(help="q4_0, q4_1, q8_0 (a .gguf file), or int4 (safetensors).")] = "q4_1",
    method: Annotated[
        str,
        typer.Option(
            help="rtn: round to nearest; search: the scale with the least error on calibration text;"
            " gptq: with it, and each column takes on what the ones before it lost."
        ),
    ] = "search",
    group: Annotated[
        int | None, typer.Option(help="Numbers that share a scale in int4: 32 (if left out), 64 or 128.")
    ] = None,
    calibration: Calibration = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of calibration, at most: 8192 for search, 16384 for gptq if left out.", min=512),
    ] = None,
    shard_size: ShardSize = 5 * 10**9,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Quantise a model: q4_0, q4_1, q8_0 into model.gguf, int4 into safetensors that compressed-tensors reads.

    The engine reads both again. After a kill it goes on when it is run again; the folder is there once it is whole.

    Example: [bold]samebits quantize smollm2 --format q4_0 --out small[/bold], then
    [bold]samebits generate --model small/model.gguf --prompt "def main"[/bold]"""
    from samebits.model.loading import load
    from samebits.post.quantizing import Job
    from samebits.post.quantizing import quantize as run
    from samebits.records.new_place import refuse_if_taken

    for option, given in (("--calibration", calibration), ("--tokens", tokens)):
        if given and method not in TOKENS:
            raise ValueError(f"quantize: {option} requires --method {' or '.join(TOKENS)}")
    if group is not None and format != "int4":
        raise ValueError("quantize: --group requires --format int4")
    refuse_if_taken(out)
    with progress(f"loading {model}"):
        loaded = load(model)
        job = Job(source=model, loaded=loaded, output=format, method=method, group=32 if group is None else group)
        layout = job.layout(shard_size)
    if dry_run:
        _print_plan(job, out, layout.sizes, as_json)
        return
    if method in TOKENS:
        importance, taken = calibrated(loaded, calibration, tokens or TOKENS[method])
        job = replace(job, importance=importance, calibration=taken)
    if method == "gptq":
        job = replace(job, feedback=_feedback(loaded, calibration, tokens or TOKENS[method]))
    with progress_bar(f"quantising into {out}", sum(each.size for each in layout.regions.values())) as tell:
        facts = run(job, out, shard_size, tell)
    if as_json:
        print_json({"schema": SCHEMA, "out": str(out), **facts})
    else:
        output().print(f"{out}: {format} by {method}, {size_text(sum(layout.sizes.values()))}, {facts['digest']}")


def calibrated(loaded: Loaded, paths: list[Path] | None, tokens: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The squares that flow into each weight, and what they were taken from."""
    from samebits.post.calibration import LENGTH, recorded, squares

    sequences = _sequences(loaded, paths, tokens)
    with progress_bar(f"calibrating on {len(sequences) * LENGTH} tokens", len(sequences)) as tell:
        return squares(loaded.model, sequences, tell), recorded(sequences)


def _feedback(loaded: Loaded, paths: list[Path] | None, tokens: int) -> dict[str, Feedback]:
    """How columns hand on what they lose, from the text that `calibrated` takes."""
    from samebits.post.calibration import LENGTH
    from samebits.post.feedback import feedback_of

    sequences = _sequences(loaded, paths, tokens)
    with progress_bar(f"second moments of {len(sequences) * LENGTH} tokens", len(sequences)) as tell:
        return feedback_of(loaded.model, sequences, tell)


def _sequences(loaded: Loaded, paths: list[Path] | None, tokens: int) -> list[list[int]]:
    from samebits.post.calibration import sequences_of, texts_of

    return sequences_of(texts_of(paths or []), loaded.tokenizer, tokens)


def _print_plan(job: Job, out: Path, files: dict[str, int], as_json: bool) -> None:
    weights = {
        name: "as it is" if (format := job.format(name)) is None else format.name for name in job.loaded.model.weights
    }
    if as_json:
        told = {"settings": job.settings(), "files": files, "tensors": weights}
        print_json({"schema": SCHEMA, "out": str(out), "dry_run": True, **told})
        return
    console = output()
    for name, stored in weights.items():
        console.print(f"  {name}  {list(job.loaded.model.weights[name].shape)}  {stored}")
    for name, size in files.items():
        console.print(f"{out / name}: {size_text(size)}")
