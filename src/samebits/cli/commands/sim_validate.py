"""`samebits sim validate`: predictions beside what others have measured, calibrated and held-out errors apart."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from samebits.cli.console import Json, output, print_json, progress

SCHEMA: Final = "samebits.sim_validate/1"
# The bar: ASTRA-sim's own figure for the largest of its three machines is 9.7 %, for the smallest 20.6 %.
BAR: Final = 0.206

Cases = Annotated[bool, typer.Option("--cases", help="Every figure, not only the errors of each source.")]


def validate(cases: Cases = False, as_json: Json = False) -> None:
    """Compare predictions with published figures. Exit 1 where held-out errors are worse than others' simulators have.

    Example: [bold]samebits sim validate --cases[/bold]"""
    from samebits.sim.validate import Errors, comparisons, own_run

    with progress("predicting what was measured"):
        found = comparisons()
    held = [case for each in found for case in each.of(calibrated=False)]
    fitted = [case for each in found for case in each.of(calibrated=True)]
    own = own_run()
    worst = max(Errors.of(each.of(calibrated=False)).geometric for each in found)
    totals = (Errors.of(fitted), Errors.of(held))
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "calibrated": _errors(totals[0]),
                "held_out": _errors(totals[1]),
                "worst_source": worst,
                "bar": BAR,
                "sources": [_source(each) for each in found],
                "own_trainer": {"published": own.published, "predicted": own.predicted, "error": own.error},
            }
        )
    else:
        _print(found, totals, own, cases)
    raise typer.Exit(0 if worst <= BAR else 1)


def _errors(errors: Any) -> dict[str, Any]:
    return {"cases": errors.count, "mean": errors.mean, "geometric_mean": errors.geometric, "largest": errors.largest}


def _source(each: Any) -> dict[str, Any]:
    return {
        "name": each.name,
        "cases": [
            {
                "name": case.name,
                "published": case.published,
                "predicted": case.predicted,
                "error": case.error,
                "calibrated": case.calibrated,
            }
            for case in each.cases
        ],
    }


def _print(found: Any, totals: Any, own: Any, cases: bool) -> None:
    from samebits.sim.validate import PEERS, Errors

    console = output()
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("source", no_wrap=True)
    for name in ("calibrated", "error", "held out", "mean", "geometric", "largest"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        fitted, held = (Errors.of(each.of(calibrated=which)) for which in (True, False))
        table.add_row(each.name, *_cells(fitted, held))
    table.add_row("all", *_cells(*totals), style="bold")
    console.print(table)
    if cases:
        for each in found:
            console.print(Text(f"\n{each.name}", style="bold"))
            for case in each.cases:
                kind = "calibrated" if case.calibrated else "held out"
                console.print(
                    f"  {case.name:34} {case.published:12.5g} {case.predicted:12.5g} {case.error:+7.1%}  {kind}"
                )
    console.print(
        Text(
            f"\n{own.name}: {own.error:+.0%}, in no row above: its kernels are slower than those of the runs"
            " that presets were calibrated on"
        )
    )
    console.print(Text("\nothers, by their own word:", style="dim"))
    for name, said in PEERS:
        console.print(Text(f"  {name}: {said}", style="dim"))


def _cells(fitted: Any, held: Any) -> tuple[str, ...]:
    first = (str(fitted.count), f"{fitted.mean:.1%}") if fitted.count else ("-", "-")
    return (*first, str(held.count), f"{held.mean:.1%}", f"{held.geometric:.1%}", f"{held.largest:.1%}")
