"""`samebits check`: judges rooms and functions, prints a table, and for each failure the line that shows it again."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer
from rich.table import Table
from rich.text import Text

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
    model: Annotated[
        str | None, typer.Option(help="A whole language model: an HF folder, a .gguf file, or smollm2.")
    ] = None,
    stock: Annotated[bool, typer.Option("--stock", help="Judge the model without invariant mode.")] = False,
    chain: Annotated[bool, typer.Option("--chain", help="All operators in a chain: thousands of tokens.")] = False,
    portable: Annotated[bool, typer.Option("--portable", help="Replay the goldens that every machine gives.")] = False,
    instruction_set: Annotated[
        str | None, typer.Option(help="With --portable: the CPU's, e.g. baseline or avx2. Default: the widest.")
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="With --portable: write the goldens anew.")] = False,
    as_json: Json = False,
) -> None:
    """Judge a room by its contract, a function by the door it is like, or a model. All but accuracy is bitwise.

    Examples: [bold]samebits check matmul rmsnorm --backend cpu[/bold], or
    [bold]samebits check torch.nn.functional.linear --promise batch[/bold], or
    [bold]samebits check examples.my_kernel:kahan --like matmul[/bold], or
    [bold]samebits check --model smollm2 --promise batch[/bold], or
    [bold]samebits check --portable --backend triton[/bold]"""
    # Loaded here: other commands need not wait for it.
    from samebits.checker import OPERATORS, Plan, Selection, execute, plan

    if portable:
        from samebits.cli.commands.check_portable import check_portable

        others = (targets, all_rooms, promise, like, format, shape, recipe, seed, model, stock, chain)
        check_portable(backend or "cpu", instruction_set, record, as_json, others)
    if record or instruction_set is not None:
        raise ValueError("check: --record and --instruction-set are about the portable goldens; say --portable too")
    if model is not None:
        _refuse_mixture(targets, all_rooms, like, shape, recipe, seed, chain)
        _check_model(model, promise, backend, format, stock, as_json)
    if chain:
        _check_chain(promise, backend, format, seed, as_json)
    if stock:
        raise ValueError("check: --stock is about a model; say which with --model")
    names = [*(targets or []), *(OPERATORS.rooms() if all_rooms else [])]
    if not names:
        known = ", ".join(OPERATORS.rooms())
        raise ValueError(f"check: name a room ({known}) or a function (mypkg.mod:fn), or say --all or --model")
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


def _refuse_mixture(*others: object) -> None:
    if any(other not in (None, False, []) for other in others):
        raise ValueError("check: --model goes with --promise, --backend, --format, --stock and --json alone")


def _check_model(
    source: str, promises: list[str] | None, backend: str | None, formats: list[str] | None, stock: bool, as_json: bool
) -> NoReturn:
    # Loaded here: other commands need not wait for it.
    from samebits.checker.model import check_model

    if formats and len(formats) > 1:
        raise ValueError(f"check: a model is judged in one format at a time, got {', '.join(formats)}")
    with progress(f"loading {source}") as tell:
        report = check_model(
            source, promises=promises, backend=backend or "cpu", format=(formats or ["float32"])[0], stock=stock,
            tell=tell,
        )  # fmt: skip
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report, ())
    raise typer.Exit(report.exit_code)


def _check_chain(
    promises: list[str] | None, backend: str | None, formats: list[str] | None, seed: int | None, as_json: bool
) -> NoReturn:
    # Loaded here: the chain imports every operator, which other commands need not wait for.
    from samebits.checker.environment import environment
    from samebits.parity.faults import FAULTS
    from samebits.parity.gate import gate

    with progress("checking") as tell:
        findings = gate(
            promises=promises, backend=backend or "cpu", formats=tuple(formats or ("float32", "bfloat16")),
            seeds=(1, 2, 3) if seed is None else (seed,), faults=FAULTS, tell=tell,
        )  # fmt: skip
    report = Report(findings=tuple(findings), environment=environment())
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report, ())
        for finding in findings:
            if finding.verdict is Verdict.HOLDS:
                output().print(Text(f"{finding.promise}: {finding.detail}", style="dim"))
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
