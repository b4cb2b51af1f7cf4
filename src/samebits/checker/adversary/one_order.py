"""One order, or this order: one for all numbers of rows is the promise; this one is asked only where it was declared.

A sum that no tree of float32 additions replays, in float64, say, or compensated, still has one order."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from samebits.checker.adversary.bench import RaisedError
from samebits.checker.adversary.probing import Probed
from samebits.checker.driving import CallError, Setting
from samebits.checker.revealing import reveal_row
from samebits.contracts.orders import declared_order
from samebits.numerics.order import digest
from samebits.numerics.picture import describe
from samebits.records.report import Finding, Verdict

TERMS = 16
ROWS = ((1, 0), (2, 1), (3, 0), (8, 5), (33, 32))
SECONDS = 8.0
CALLS_A_REVELATION = 400


def judge_order(
    probed: Probed, declared: str | None, finding: Callable[..., Finding], tell: Callable[[str], None]
) -> list[Finding]:
    """At most one finding: where the operator's output does not show its sum, nothing is asked."""
    bench = probed.bench
    spec = bench.form.spec
    if spec.probe is None:
        if declared:
            return [
                finding("order", Verdict.COULD_NOT_BE_JUDGED, 0, f"the output of {spec.name} does not show its sum")
            ]
        return []
    tell("the order of its sums")

    def called(*tensors: torch.Tensor) -> torch.Tensor:
        try:
            return bench.raw(*tensors)
        except RaisedError as error:
            raise CallError(str(error)) from error

    setting = Setting(function=called, spec=spec, backend="cpu")
    known: dict[str, list[int]] = {}
    words: dict[str, str] = {}
    plain, deadline = True, time.monotonic() + SECONDS
    for number, (rows, row) in enumerate(ROWS):
        if number >= 2 and time.monotonic() > deadline and not declared:
            break
        try:
            found = reveal_row(setting, TERMS, rows, row, probed.formats[0])
        except CallError as reason:
            if not declared:  # the probes' sizes are not among those it takes
                return []
            return [finding("order", Verdict.COULD_NOT_BE_JUDGED, number, f"{rows} rows of {TERMS} terms: {reason}")]
        if found.order is None:
            return [
                finding("order", Verdict.COULD_NOT_BE_JUDGED, number, found.verdict.partition(": ")[2] or found.verdict)
            ]
        plain &= found.holds
        identity = digest(found.order)
        known.setdefault(identity, []).append(rows)
        words[identity] = describe(found.order)
    if len(known) > 1 and not plain and not declared:
        # In a wider accumulator two orders may round to one number: only bits can accuse it, and they were compared.
        wide = "its accumulator is wider than float32 or compensated: no one order of float32 additions replays it"
        return [
            finding("order", Verdict.HOLDS, len(ROWS), f"{wide}; {len(known)} orders seen by probes beyond float32")
        ]
    if len(known) > 1:
        parts = [f"rows {', '.join(map(str, rows))} use {words[each]} [{each[:12]}]" for each, rows in known.items()]
        return [
            finding(
                "order", Verdict.DOES_NOT_HOLD, len(ROWS), f"{len(known)} orders for {TERMS} terms: {'; '.join(parts)}"
            )
        ]
    (identity,) = known
    if declared and (identity != digest(declared_order(declared, TERMS)) or not plain):
        beside = "" if plain else ", in a wider or compensated accumulator"
        return [
            finding(
                "order",
                Verdict.DOES_NOT_HOLD,
                len(ROWS),
                f"found {words[identity]}{beside}; declared {declared}: {describe(declared_order(declared, TERMS))}",
            )
        ]
    note = (
        words[identity] if plain else f"{words[identity]}, in an accumulator that is wider than float32 or compensated"
    )
    return [finding("order", Verdict.HOLDS, len(ROWS), f"one order for all rows: {note}")]
