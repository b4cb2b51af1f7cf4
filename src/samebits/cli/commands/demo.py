"""`samebits demo`: stock torch and samebits side by side on this machine, on the terminal and as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from samebits.cli.console import VERDICT_STYLES, Json, output, print_json, progress
from samebits.numerics.order import digest
from samebits.numerics.picture import describe
from samebits.records.durable import put_in_one_move
from samebits.records.plain_file import refuse_unless_plain
from samebits.records.report import EXIT_CODES, Verdict

if TYPE_CHECKING:
    from samebits.cli.demonstration import Demonstration
    from samebits.parity.demo_results import Answer, Crowd, Cuts, Models

SCHEMA = "samebits.demo/2"


def demo(
    out: Annotated[Path, typer.Option(help="Where the page is written.")] = Path("samebits_demo.html"),
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the real model.")] = False,
    as_json: Json = False,
) -> None:
    """Show where stock torch changes bits on this machine, and that samebits does not.

    A row with its batch; a real model's answer with the crowd; trained weights with the cut of a batch; and what an
    engine drew with what its trainer sees.

    Example: [bold]samebits demo --out samebits_demo.html[/bold]"""
    # Loaded here: it imports trainer and engine, which other commands need not wait for.
    from samebits.cli.demonstration import demonstrate
    from samebits.cli.page import render
    from samebits.parity.demo import REAL_MODEL, measure

    # Said before the minute that it takes to measure.
    if not out.parent.is_dir() or out.is_dir():
        wrong = "is a folder" if out.is_dir() else f"there is no folder {out.parent}"
        raise ValueError(f"--out {out}: {wrong}; allowed: a file in a folder that is there")
    refuse_unless_plain(out)
    with progress("measuring") as tell:
        shown = demonstrate(tell)
        models = measure(tell, None if quick else REAL_MODEL)
    try:
        put_in_one_move(out, render(shown, models).encode())
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror}") from error
    verdict = _verdict(shown, models)
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "page": str(out),
                "verdict": str(verdict),
                **shown.as_dict(),
                "samebits_keeps_its_bits": shown.kept and models.kept,
                "models": models.as_dict(),
            }
        )
    else:
        _print(shown, models, verdict, out)
    if models.missing:
        print(f"samebits: {models.missing}", file=sys.stderr)
    raise typer.Exit(EXIT_CODES[verdict])


def _verdict(shown: Demonstration, models: Models) -> Verdict:
    if not (shown.kept and models.kept):
        return Verdict.DOES_NOT_HOLD
    return Verdict.COULD_NOT_BE_JUDGED if models.missing else Verdict.HOLDS


def _print(shown: Demonstration, models: Models, verdict: Verdict, out: Path) -> None:
    console = output()
    _print_rows(console, shown)
    if models.crowd is not None:
        _print_crowd(console, models.crowd)
    _print_training(console, models)
    console.print(Text("\nwhat the engine drew against what the trainer sees:"))
    for policy in models.policies:
        for name, found in (("stock torch", policy.stock.comparison), ("samebits", policy.ours.comparison)):
            console.print(Text(f"  {policy.model:<8} {name:<12} ").append(str(found), _style(found.exact)))
    console.print(Text(f"\nwritten: {out}", style="dim"))
    console.print(Text(f"samebits keeps its bits: {verdict}", style=VERDICT_STYLES[str(verdict)]))


def _print_rows(console: Console, shown: Demonstration) -> None:
    for sweep in shown.sweeps:
        text = Text(f"{sweep.subject:<28} {sweep.format:<9} ")
        words = f"{sweep.changed:>5} of {sweep.compared} rows change with their batch"
        console.print(text.append(words, style=_style(not sweep.changed)))
    if shown.example is not None:
        example = shown.example
        console.print(Text(f"\nfirst difference, {example.subject} {example.case}, row {example.index[0]}:"))
        for words, number in (("alone", example.alone), (f"in a batch of {example.rows}", example.batched)):
            console.print(Text(f"  {words:<18} {number.hexadecimal:<20} {number.pattern}"))
    for subject in shown.orders:
        console.print(Text(f"\n{subject.subject}, {subject.terms} terms, float32:"))
        for group in subject.groups:
            if group.order is not None:
                words = f"{describe(group.order)}  [{digest(group.order)[:12]}]  {group.verdict}"
                console.print(Text(f"  rows {', '.join(group.labels):<14} {words}"))


def _print_crowd(console: Console, crowd: Crowd) -> None:
    question = f"{crowd.model} is asked {crowd.question!r} alone and beside {len(crowd.others)} other questions:"
    console.print(Text(f"\n{question}"))
    console.print(Text(f"  {crowd.ours.alone!r}", style="dim"))
    for name, answer in (("stock torch", crowd.stock), ("samebits", crowd.ours)):
        console.print(Text(f"  {name:<12} ").append(_said(answer), _style(not answer.differing)))


def _said(answer: Answer) -> str:
    from samebits.numerics.bits import hexadecimal

    said = f"{answer.differing} of {len(answer.tokens)} logprobs differ"
    if answer.first is not None:
        token = answer.tokens[answer.first]
        pair = f"{hexadecimal(token.alone)} != {hexadecimal(token.crowded)}"
        said += f"; first token {answer.first + 1}, {token.text!r}: {pair} ({token.ulps} ulp)"
    return said if answer.alone == answer.crowded else f"{said}; the answers part"


def _print_training(console: Console, models: Models) -> None:
    count = len(models.our_cuts.runs[0].losses)
    console.print(Text(f"\na model of {models.our_cuts.weights} weights after {count} updates, its batches cut:"))
    for name, cuts in (("stock torch", models.stock_cuts), ("samebits", models.our_cuts)):
        for run in cuts.runs:
            cut = f"{run.accumulation} x {run.micro_batch} {run.collation}"
            console.print(Text(f"  {name:<12} {cut:<14} ").append(run.digest, _style(cuts.kept)))
        console.print(Text(f"  {'':<12} {_weights(cuts)}", style=_style(cuts.kept)))


def _weights(cuts: Cuts) -> str:
    return "one checkpoint" if cuts.kept else f"{cuts.differing} of {cuts.weights} weights differ"


def _style(kept: bool) -> str:
    return "green" if kept else "red"
