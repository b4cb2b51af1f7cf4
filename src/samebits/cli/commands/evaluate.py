"""`samebits evaluate`: perplexity and multiple-choice questions from local files, the same in any batch size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from samebits.cli.commands.distill import DryRun
from samebits.cli.console import Json, output, print_json, progress
from samebits.cli.devices import check_device

if TYPE_CHECKING:
    from samebits.infer.evaluate import Evaluation

SCHEMA = "samebits.evaluate/1"


def evaluate(
    model: Annotated[str, typer.Option(help="A folder with config.json, a .gguf file, smollm2, or tiny@0.")],
    tasks: Annotated[
        list[Path] | None,
        typer.Option("--task", metavar="FILE", help="JSON lines with question, choices and answer; acc and acc_norm."),
    ] = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help='A text, or .jsonl lines with "text"; perplexity.'),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sequences in one batch. Changes no bit.")] = 16,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of the longest window. Default: 2048, or what the model has.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Take so many documents of each file.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option("--out", help="A folder for samples.jsonl and results.json; it can be resumed.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Score a model on local files, by the engine: --batch-size 1 and 16 give the same bits, and so the same digest.

    Metrics have the names and formulas of lm-evaluation-harness.

    Example: [bold]samebits evaluate --model smollm2 --task examples/evaluate/questions.jsonl --text README.md[/bold]"""
    # Loaded here: other commands need not wait for it.
    from samebits.infer.evaluate import Evaluation
    from samebits.infer.evaluate import evaluate as run
    from samebits.infer.evaluate_tasks import multiple_choice, text
    from samebits.infer.scoring import Scorer
    from samebits.model.loading import load

    if resume and out is None:
        raise ValueError("evaluate: --resume requires --out")
    if limit is not None and limit < 1:
        raise ValueError(f"evaluate: --limit is {limit}; allowed: at least 1")
    for path in (*(tasks or ()), *(texts or ())):
        if not path.is_file():
            raise ValueError(f"{path}: no such file; allowed: a file of JSON lines or text")
    check_device("--device", device)
    with progress(f"loading {model}") as tell:
        loaded = load(model, dtype, device)
        most = Scorer(loaded.model, batch_size=batch_size).longest
        longest = _longest(max_length, most)
        tell("reading files")
        kinds = ((multiple_choice, tasks), (text, texts))
        read = [kind(path, loaded.tokenizer, longest, limit) for kind, paths in kinds for path in paths or ()]
        chosen = Evaluation(model=loaded.model, words=loaded.tokenizer, tasks=tuple(read), longest=longest)
        if not dry_run:

            def show(done: int, total: int) -> None:
                tell(f"{done:,} of {total:,} documents")

            found = run(chosen, batch_size=batch_size, folder=out, resume=resume, tell=show)
    if dry_run:
        _print_plan(model, chosen, batch_size, as_json)
    elif as_json:
        print_json({"schema": SCHEMA, "source": model, "dtype": dtype, "batch_size": batch_size, **found})
    else:
        _print(found)


def _longest(given: int | None, most: int) -> int:
    """Tokens of a window."""
    if given is None:
        return min(2048, most)
    if not 2 <= given <= most:
        raise ValueError(
            f"evaluate: --max-length is {given}; allowed: 2 to {most}, one less than the model's positions"
        )
    return given


def _print_plan(model: str, chosen: Evaluation, batch_size: int, as_json: bool) -> None:
    rows = [
        {
            "task": task.name,
            "kind": task.kind,
            "documents": len(task.documents),
            "sequences": sum(len(document.pairs) for document in task.documents),
            "tokens": sum(len(pair.tokens) for document in task.documents for pair in document.pairs),
        }
        for task in chosen.tasks
    ]
    if as_json:
        plan = {"dry_run": True, "batch_size": batch_size, "max_length": chosen.longest, "plan": rows}
        print_json({"schema": SCHEMA, "source": model, **plan})
        return
    output().print(_table(rows))


def _print(found: dict[str, Any]) -> None:
    console = output()
    rows = [
        {"task": name, "metric": metric, "value": "inf" if value is None else f"{value:.6g}"}
        for name, metrics in found["results"].items()
        for metric, value in metrics.items()
    ]
    console.print(_table(rows))
    console.print(Text(f"all loglikelihoods: {found['digest']}"))


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for name in rows[0]:
        table.add_column(name, justify="left" if name in ("task", "kind", "metric") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    return table
