"""`samebits diff RUN_A RUN_B`: where two training runs part, and which promise that breaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.cli.console import Json, output, print_json, printable

if TYPE_CHECKING:
    from samebits.parity.run_diff import Comparison, Difference

SCHEMA = "samebits.diff/1"
PARTS = {
    "sequences": "its sequences are others",
    "forward": "the loss differs, so its forward pass, its sequences or the weights before it",
    "backward": "its backward pass",
    "norm": "the norm of the gradient",
    "clipping": "the clipping",
    "rate": "the learning rate",
    "update": "its update",
    "backward or update": "its backward pass or its update",
    "breach": "a breach stopped one of them, or each for another reason",
}
# What each promise says, of those that two runs can break.
PROMISES = {
    "repeat": "run to run, same process or not",
    "micro": "however a global batch is cut into micro-batches",
    "padding": "left, right, any length bucket",
    "data": "number of ranks that share a global batch",
    "tile": "launch numbers: tile, warps, threads, instruction set",
    "device": "float32: CPU equals CUDA",
}
NEEDED = "not compared; needed: fingerprints of one model, kept by both runs (monitoring.fingerprint_steps)"


def diff(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="The folder of a training run.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="The folder of another one.")],
    as_json: Json = False,
) -> None:
    """Find the first step, block, operation and element at which two training runs part. Exit 1 where they do.

    Gradients are compared at the steps of which both runs kept fingerprints (monitoring.fingerprint_steps), updates
    at those of which both kept a checkpoint (training.save_steps).

    Example: [bold]samebits diff runs/a runs/b[/bold]"""
    from samebits.parity.run_diff import compare

    found = compare(run_a, run_b)
    if as_json:
        print_json({"schema": SCHEMA, **found.document()})
    else:
        output().print(printable(f"{run_a} | {run_b}"))
        for line in lines(found):
            output().print(printable(line))
    raise typer.Exit(0 if found.difference is None else 1)


def lines(found: Comparison) -> Iterator[str]:
    """The comparison in words."""
    for key, (left, right) in found.settings.items():
        yield f"{key}: {left} | {right} (decides bits)"
    for key, (left, right) in found.environment.items():
        yield f"{key}: {left} | {right} (should decide no bit)"
    if found.difference is None:
        yield f"the same bits: {found.steps} steps; gradients compared at {found.fingerprints} of them"
        if not found.fingerprints:
            yield f"  gradients: {NEEDED}"
        if found.last_steps[0] != found.last_steps[1]:
            yield f"last steps: {found.last_steps[0]} | {found.last_steps[1]}; those of one run alone were not compared"
        return
    yield f"they part at step {found.difference.step}: {PARTS[found.difference.part]}"
    if found.difference.step > 1:
        yield "  before it: the same bits, in all that both runs kept"
    yield from _difference(found.difference)
    if not found.promise:
        yield "no promise is broken: settings that decide bits differ"
        return
    yield f"promise broken: {found.promise} ({PROMISES[found.promise]})"
    known = f"other: {', '.join(found.environment)}" if found.environment else "so is what is known of the machine"
    yield f"  every setting that decides bits is the same; {known}"


def _difference(difference: Difference) -> Iterator[str]:
    for name, (left, right) in difference.numbers.items():
        yield f"  {name}: {left!r} | {right!r}"
    if difference.part in ("sequences", "forward"):
        yield f"  weights before it: {_before(difference)}"
    if not difference.gradients_compared:
        yield f"  gradients: {NEEDED}"
    elif difference.part in ("norm", "clipping", "rate", "update"):
        yield "  gradients before clipping: the same bits"
    yield from _place(difference)


def _before(difference: Difference) -> str:
    step = difference.step - 1
    if difference.weights_before:
        return f"equal, by the checkpoints of step {step}"
    if not step:
        return "those that the runs began with, of which nothing is kept"
    return f"not compared; needed: checkpoints of step {step} on both sides (training.save_steps=1)"


def _place(difference: Difference) -> Iterator[str]:
    place = difference.place
    if place is None:
        return
    if difference.part in ("sequences", "forward"):
        # All that flows back is of another pass: the one that comes first is not where it began.
        yield f"  gradients that differ, as a consequence: {place.weights_differing}"
        return
    index = ", ".join(map(str, place.element))
    said = [f"bits {place.flipped_bits} flipped"] if place.flipped_bits else []
    if not place.exact:
        said.append("the first row and the first column that differ")
    if place.elements > 1:
        said.append(f"at most {place.elements} elements differ")
    yield f"  block {place.block}, {place.operation}: {place.weight}[{index}], {', '.join(said)}"
    if place.flipped_bits and place.elements == 1:
        yield f"  this one element alone: its two patterns differ in {_bits(int(place.flipped_bits, 16))}"
    what = "weights that differ" if "update" in difference.part else "weights whose gradient differs"
    yield f"  {what}: {place.weights_differing}"


def _bits(flipped: int) -> str:
    places = [str(place) for place in range(flipped.bit_length()) if flipped >> place & 1]
    return f"bit{'s' if places[1:] else ''} {', '.join(places)} (bit 0 is the last of the fraction)"
