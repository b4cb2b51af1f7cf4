"""`samebits diff RUN_A RUN_B`: where two training runs part, and which promise that breaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.cli.console import Json, output, print_json

if TYPE_CHECKING:
    from samebits.parity.run_diff import Comparison, Difference

SCHEMA = "samebits.diff/1"


def diff(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="The folder of a training run.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="The folder of another one.")],
    as_json: Json = False,
) -> None:
    """Find the first step, block, operation and element at which two training runs part. Exit 1 where they do.

    Gradients are compared at the steps of which both runs kept fingerprints (monitoring.fingerprint_steps).

    Example: [bold]samebits diff runs/a runs/b[/bold]"""
    from samebits.parity.run_diff import compare

    found = compare(run_a, run_b)
    if as_json:
        print_json({"schema": SCHEMA, **found.document()})
    else:
        for line in lines(found):
            output().print(line)
    raise typer.Exit(0 if found.difference is None else 1)


def lines(found: Comparison) -> Iterator[str]:
    """The comparison in words."""
    for key, (left, right) in found.settings.items():
        yield f"{key}: {left} | {right} (decides bits)"
    for key, (left, right) in found.environment.items():
        yield f"{key}: {left} | {right} (should decide no bit)"
    if found.difference is None:
        yield f"the same bits: {found.steps} steps; gradients compared at {found.fingerprints} of them"
        return
    yield f"they part at step {found.difference.step}"
    yield from _place(found.difference)
    yield (
        f"promise broken: {found.promise}"
        if found.promise
        else "no promise is broken: settings that decide bits differ"
    )


def _place(difference: Difference) -> Iterator[str]:
    for name, (left, right) in difference.numbers.items():
        yield f"  {name}: {left!r} | {right!r}"
    place = difference.place
    if place is None:
        yield "  not both runs have fingerprints of that step: set monitoring.fingerprint_steps to name the element"
        return
    index = ", ".join(map(str, place.element))
    bits = f"bits {place.flipped_bits} flipped" if place.flipped_bits else f"at most {place.elements} elements differ"
    yield f"  block {place.block}, {place.operation}: {place.weight}[{index}], {bits}"
    yield f"  gradients that differ: {place.weights_differing}"
