"""`samebits check`: judges components and functions, prints a table, and for each failure the line that shows it
again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.text import Text

from samebits.cli.console import VERDICT_STYLES, Json, output, print_json, progress
from samebits.records.report import Finding, Report, Verdict

if TYPE_CHECKING:
    from samebits.checker import Plan


def check(
    targets: Annotated[
        list[str] | None, typer.Argument(help="Operators (matmul) or functions (mypkg.mod:fn, ./file.py:fn).")
    ] = None,
    all_components: Annotated[bool, typer.Option("--all", help="Every operator.")] = False,
    backend: Annotated[
        str | None, typer.Option(help="cpu or triton. Default: all of an operator's, cpu for a function.")
    ] = None,
    promise: Annotated[list[str] | None, typer.Option(help="Only this promise; may be given several times.")] = None,
    like: Annotated[str | None, typer.Option(help="The operator that a function computes, e.g. linear.")] = None,
    format: Annotated[list[str] | None, typer.Option(help="Only float32, bfloat16 or float16.")] = None,
    shape: Annotated[str | None, typer.Option(help="Only this shape, rows first, e.g. 33x576x64.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Only this data, e.g. normal, wide or cancelling.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only this seed.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How long a function is searched, on an idle machine.")] = None,
    thorough: Annotated[bool, typer.Option("--thorough", help="Search a function for ten minutes.")] = False,
    case: Annotated[str | None, typer.Option(help="One case that an earlier check printed.")] = None,
    order: Annotated[str | None, typer.Option(help="The order that a function declares, e.g. chain-1.")] = None,
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
    """Judge an operator by its contract, search anyone's function for a difference, or judge a model.

    All but accuracy is bitwise. Examples:

    [bold]samebits check matmul rmsnorm --backend cpu[/bold]

    [bold]samebits check torch.nn.functional.linear --promise batch[/bold]

    [bold]samebits check ./my_kernel.py:fast_matmul --like matmul[/bold]

    [bold]samebits check --model smollm2 --promise batch[/bold]

    [bold]samebits check --portable --backend triton[/bold]"""
    # Loaded here: other commands need not wait for it.
    from samebits.checker import OPERATORS, Plan, Selection, plan
    from samebits.checker.adversary import THOROUGH_SECONDS

    if portable:
        from samebits.cli.commands.check_portable import check_portable

        others = (
            targets,
            all_components,
            promise,
            like,
            format,
            shape,
            recipe,
            seed,
            model,
            stock,
            chain,
            seconds,
            thorough,
            case,
            order,
        )
        check_portable(backend or "cpu", instruction_set, record, as_json, others)
    if record or instruction_set is not None:
        raise ValueError("check: --record and --instruction-set require --portable")
    if model is not None:
        _refuse_mixture(targets, all_components, like, shape, recipe, seed, chain, seconds, thorough, case, order)
        _check_model(model, promise, backend, format, stock, as_json)
    if chain:
        _check_chain(promise, backend, format, seed, as_json)
    if stock:
        raise ValueError("check: --stock requires --model")
    names = [*(targets or []), *(OPERATORS.components() if all_components else [])]
    if not names:
        known = ", ".join(OPERATORS.components())
        raise ValueError(f"check: name a component ({known}) or a function (mypkg.mod:fn), or pass --all or --model")
    selection = Selection(shape=parse_shape(shape), recipe=recipe, formats=tuple(format) if format else None, seed=seed)
    work = Plan(judgements=())
    for name in dict.fromkeys(names):
        work += plan(
            name,
            like,
            promises=promise,
            backend=backend,
            selection=selection,
            case=case,
            order=order,
            seconds=THOROUGH_SECONDS if thorough and seconds is None else seconds,
        )
    report = _executed(work, quiet=as_json)
    if as_json:
        print_json({**report.as_dict(), "not_asked": list(work.not_asked)})
    else:
        _print_after(report, work.not_asked)
    raise typer.Exit(report.exit_code)


def _executed(work: Plan, *, quiet: bool) -> Report:
    """Judges, and prints every finding as soon as it is there: a check may take minutes, its first line must not."""
    from samebits.checker import execute

    console, widths = output(), _widths(work)
    # A function may turn out to be none once it is imported; an operator is there.
    titled = False

    def title() -> None:
        nonlocal titled
        if not quiet and not titled:
            titled = True
            console.print(Text(_row(HEADER, widths), style="dim"))
            console.file.flush()

    def found(finding: Finding) -> None:
        title()
        if not quiet:
            console.print(_styled(finding, widths))
            console.file.flush()

    if work.judgements:
        title()
    with progress("checking") as tell:
        if work.requests and not sys.stderr.isatty():
            names = ", ".join(request.origin.name for request in work.requests)
            seconds = sum(request.seconds for request in work.requests)
            print(f"samebits: searching {names} for about {seconds:.0f} s", file=sys.stderr, flush=True)
        return execute(work, tell, found)


HEADER = ("subject", "promise", "backend", "verdict", "cases", "faults caught", "seconds")


def _widths(work: Plan) -> tuple[int, ...]:
    """Columns for all that is going to be judged."""
    judged = [(each.subject, each.promise, each.backend) for each in work.judgements]
    return _columns(
        judged + [(each.origin.name, word, each.backend) for each in work.requests for word in each.promises]
    )


def _columns(judged: Sequence[tuple[str, str, str]]) -> tuple[int, ...]:
    """As wide as what is in them; nothing to judge has no columns."""
    if not judged:
        return ()
    subjects, promises, backends = zip(*judged, strict=True)
    columns = (subjects, promises, backends, tuple(VERDICT_STYLES), ("0" * 6,), (), ("0" * 6,))
    return tuple(max(len(word) for word in (title, *column)) for title, column in zip(HEADER, columns, strict=True))


def _row(words: Sequence[str], widths: Sequence[int]) -> str:
    """Words on the left, numbers on the right."""
    cells = [
        word.ljust(width) if place < 4 else word.rjust(width)
        for place, (word, width) in enumerate(zip(words, widths, strict=True))
    ]
    return "   ".join(cells).rstrip()


def _styled(finding: Finding, widths: Sequence[int]) -> Text:
    faults = f"{finding.faults_caught} of {finding.faults_planted}" if finding.faults_planted else "-"
    verdict = str(finding.verdict)
    text = Text(
        _row(
            (
                finding.subject,
                finding.promise,
                finding.backend,
                verdict,
                str(finding.cases),
                faults,
                f"{finding.seconds:.1f}",
            ),
            widths,
        )
    )
    text.highlight_words([verdict], VERDICT_STYLES[verdict])
    return text


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
            source,
            promises=promises,
            backend=backend or "cpu",
            format=(formats or ["float32"])[0],
            stock=stock,
            tell=tell,
        )
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
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
            promises=promises,
            backend=backend or "cpu",
            formats=tuple(formats or ("float32", "bfloat16")),
            seeds=(1, 2, 3) if seed is None else (seed,),
            faults=FAULTS,
            tell=tell,
        )
    report = Report(findings=tuple(findings), environment=environment())
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
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


def _print(report: Report) -> None:
    """A whole report at once."""
    console, widths = output(), _columns([(each.subject, each.promise, each.backend) for each in report.findings])
    if widths:
        console.print(Text(_row(HEADER, widths), style="dim"))
    for finding in report.findings:
        console.print(_styled(finding, widths))
    _print_after(report, ())


def _print_after(report: Report, not_asked: tuple[str, ...]) -> None:
    """What stands under the table: failures, what was covered, what was not asked, and the counts."""
    console = output()
    failures = [finding for finding in report.findings if finding.verdict is not Verdict.HOLDS]
    for finding in failures:
        console.print(_failure(finding))
    notes = [*report.notes, *(f"not asked: {line}" for line in not_asked)]
    if notes:
        console.print()
    for line in notes:
        console.print(Text(line, style="dim"))
    counts = ", ".join(f"{verdict}: {count}" for verdict, count in report.counts().items() if count)
    if failures or notes:
        console.print()
    console.print(Text(counts or "nothing was judged", style=VERDICT_STYLES[str(report.verdict)]))


def _failure(finding: Finding) -> Text:
    text = Text(f"\n{finding.subject}: {finding.promise} ")
    text.append(str(finding.verdict), style=VERDICT_STYLES[str(finding.verdict)])
    obligation = f" ({finding.obligation})" if finding.obligation else ""
    text.append(f" on {finding.backend}{obligation}\n  {finding.detail}")
    if finding.reproduce:
        text.append(f"\n  again: {finding.reproduce}", style="dim")
    return text
