"""`samebits check`: judges rooms and functions, prints a table, and for each failure the line that shows it again."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from samebits.checker import OPERATORS, Plan, Selection, execute, plan
from samebits.cli.console import VERDICT_STYLES, Json, output, print_json, progress
from samebits.records.report import Finding, Report, Verdict


def check(
    targets: Annotated[list[str] | None, typer.Argument(help="Rooms (matmul) or functions (mypkg.mod:fn).")] = None,
    all_rooms: Annotated[bool, typer.Option("--all", help="Every room.")] = False,
    backend: Annotated[str | None, typer.Option(help="cpu or triton. Default: a room's all, a function's cpu.")] = None,
    promise: Annotated[list[str] | None, typer.Option(help="Only this promise; may be given several times.")] = None,
    like: Annotated[str | None, typer.Option(help="The door a function is judged by, e.g. linear.")] = None,
    format: Annotated[list[str] | None, typer.Option(help="Only float32, bfloat16 or float16.")] = None,
    shape: Annotated[str | None, typer.Option(help="Only this shape, rows first, e.g. 33x576x64.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Only this data, e.g. normal, wide or cancelling.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only this seed.")] = None,
    as_json: Json = False,
) -> None:
    """Judge a room by its contract, or a function by the door it is like. Every promise but accuracy is bitwise.

    Examples: [bold]samebits check matmul rmsnorm --backend cpu[/bold], or
    [bold]samebits check torch.nn.functional.linear --promise batch[/bold], or
    [bold]samebits check examples.my_kernel:kahan --like matmul[/bold]"""
    names = [*(targets or []), *(OPERATORS.rooms() if all_rooms else [])]
    if not names:
        known = ", ".join(OPERATORS.rooms())
        raise ValueError(f"check: name a room ({known}) or a function (mypkg.mod:fn), or say --all")
    selection = Selection(shape=parse_shape(shape), recipe=recipe, formats=tuple(format) if format else None, seed=seed)
    work = Plan(judgements=())
    for name in dict.fromkeys(names):
        work += plan(name, like, promises=promise, backend=backend, selection=selection)
    with progress("checking") as tell:
        report = execute(work, tell)
    if as_json:
        print_json({**report.as_dict(), "not_asked": list(work.not_asked)})
    else:
        _print(report, work.not_asked)
    raise typer.Exit(report.exit_code)


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """33x576x64 as numbers."""
    if text is None:
        return None
    sizes = text.lower().split("x")
    if not all(size.isascii() and size.isdigit() for size in sizes):
        raise ValueError(f"shape={text!r} cannot be read; allowed: sizes joined by x, like 33x576x64")
    return tuple(int(size) for size in sizes)


def _print(report: Report, not_asked: tuple[str, ...]) -> None:
    console = output()
    if report.findings:
        console.print(_table(report))
    failures = [finding for finding in report.findings if finding.verdict is not Verdict.HOLDS]
    for finding in failures:
        console.print(_failure(finding))
    if not_asked:
        console.print()
    for line in not_asked:
        console.print(Text(f"not asked: {line}", style="dim"))
    counts = ", ".join(f"{verdict}: {count}" for verdict, count in report.counts().items() if count)
    if failures or not_asked:
        console.print()
    console.print(Text(counts or "nothing was judged", style=VERDICT_STYLES[str(report.verdict)]))


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for name in ("subject", "promise", "backend", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in ("cases", "faults caught", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for finding in report.findings:
        faults = f"{finding.faults_caught} of {finding.faults_planted}" if finding.faults_planted else "-"
        table.add_row(
            finding.subject, finding.promise, finding.backend,
            Text(str(finding.verdict), style=VERDICT_STYLES[str(finding.verdict)]),
            str(finding.cases), faults, f"{finding.seconds:.1f}",
        )  # fmt: skip
    return table


def _failure(finding: Finding) -> Text:
    text = Text(f"\n{finding.subject}: {finding.promise} ")
    text.append(str(finding.verdict), style=VERDICT_STYLES[str(finding.verdict)])
    obligation = f" ({finding.obligation})" if finding.obligation else ""
    text.append(f" on {finding.backend}{obligation}\n  {finding.detail}")
    if finding.reproduce:
        text.append(f"\n  again: {finding.reproduce}", style="dim")
    return text
