"""One order, or this order: one for all numbers of rows is the promise; this one is asked only where it was declared.

A sum that no tree of float32 additions replays, in float64, say, or compensated, still has one order."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from samebits.checker.adversary.bench import RaisedError
from samebits.checker.adversary.likeness import order_of_probes
from samebits.checker.adversary.probing import Probed
from samebits.checker.adversary.workers import busy
from samebits.checker.driving import CallError, Setting
from samebits.checker.revealing import reveal_row
from samebits.checker.special_terms import of_row
from samebits.checker.targets import Home, find_spec
from samebits.contracts.orders import declared_order
from samebits.numerics.order import digest
from samebits.numerics.picture import describe
from samebits.numerics.reveal import Revelation
from samebits.records.report import Finding, Verdict

TERMS = 16
ROWS = ((1, 0), (2, 1), (3, 0), (8, 5), (33, 32))
# For all of them, where no order is declared; more on a machine that is busy. What was not asked by then is not judged.
SECONDS = 60.0
FIRST_SECONDS = 120.0
"""For the first of them alone: a function for which that is too little is not asked at all."""
SPECIAL_VECTORS = 48
"""Replayed of each kind of special terms, for one number of rows: how a row's numbers decide is the same for all."""
FEWEST_CALLS = 300
"""That an order takes, to be replayed on enough numbers."""


class Seen:
    """The orders that were revealed, by digest."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.words: dict[str, str] = {}
        self.plain = True
        """Whether every one replays with float32 additions alone."""
        self.asked = 0

    @property
    def beside(self) -> str:
        return "" if self.plain else ", in an accumulator that is wider than float32 or compensated"

    def add(self, rows: int, found: Revelation) -> None:
        assert found.order is not None
        identity = digest(found.order)
        self.rows.setdefault(identity, []).append(rows)
        self.words[identity] = describe(found.order)
        self.plain &= found.holds
        self.asked += 1


def judge_order(
    probed: Probed, home: Home, declared: str | None, finding: Callable[..., Finding], tell: Callable[[str], None]
) -> list[Finding]:
    """At most one finding: where the operator's output does not show its sum, nothing is asked."""
    bench = probed.bench
    arguments = order_of_probes(*find_spec(bench.form.spec.name, home))
    spec = bench.form.spec
    unjudged = partial(finding, "order", Verdict.COULD_NOT_BE_JUDGED)
    if spec.probe is None:
        return [unjudged(0, f"the output of {spec.name} does not show its sum")] if declared else []
    a_call = bench.cost.expected((1, *(TERMS for _ in spec.shape_axes[1:])))
    if a_call * FEWEST_CALLS > FIRST_SECONDS * busy() and not declared:
        slow = f"too slow: a call takes about {a_call:.1f} s, and an order {FEWEST_CALLS} calls and more"
        return [unjudged(0, f"{slow}; allowed: {FIRST_SECONDS:.0f} s of an idle machine")]
    tell("the order of its sums")

    def called(*tensors: torch.Tensor) -> torch.Tensor:
        try:
            return bench.raw(*tensors, order=arguments)
        except RaisedError as error:
            raise CallError(str(error)) from error

    setting = Setting(function=called, spec=spec, backend="cpu")
    seen, deadline = Seen(), time.monotonic() + SECONDS * busy()
    for rows, row in ROWS:
        if seen.asked and time.monotonic() > deadline and not declared:
            break
        try:
            found = reveal_row(setting, TERMS, rows, row, probed.formats[0])
            if found.holds and not seen.asked:
                found = of_row(setting, found, TERMS, rows, probed.formats[0], SPECIAL_VECTORS)
                if not found.holds:
                    return [finding("order", Verdict.DOES_NOT_HOLD, 1, _with_exceptions(found))]
        except CallError as reason:
            # Not declared: the probes' sizes may be none that it takes.
            return [unjudged(seen.asked, f"{rows} rows of {TERMS} terms: {reason}")] if declared else []
        if found.order is None:
            return [unjudged(seen.asked, found.verdict.partition(": ")[2] or found.verdict)]
        seen.add(rows, found)
    verdict, detail = _of_several(seen) if len(seen.rows) > 1 else _of_one(seen, declared)
    return [finding("order", verdict, seen.asked, detail)]


def _with_exceptions(found: Revelation) -> str:
    assert found.order is not None
    return f"{describe(found.order)}, and {found.verdict.partition(': ')[2]}"


def _of_several(seen: Seen) -> tuple[Verdict, str]:
    parts = [
        f"rows {', '.join(map(str, rows))} use {seen.words[each]} [{each[:12]}]" for each, rows in seen.rows.items()
    ]
    return Verdict.DOES_NOT_HOLD, f"{len(parts)} orders for {TERMS} terms{seen.beside}: {'; '.join(parts)}"


def _of_one(seen: Seen, declared: str | None) -> tuple[Verdict, str]:
    words = next(iter(seen.words.values()))
    if declared and (next(iter(seen.rows)) != digest(declared_order(declared, TERMS)) or not seen.plain):
        wanted = describe(declared_order(declared, TERMS))
        return Verdict.DOES_NOT_HOLD, f"found {words}{seen.beside}; declared {declared}: {wanted}"
    if seen.asked < len(ROWS):
        which = ", ".join(str(rows) for rows, _ in ROWS[: seen.asked])
        return (
            Verdict.COULD_NOT_BE_JUDGED,
            f"too slow: for {which} rows it adds as {words}; of {len(ROWS)} numbers of rows the others"
            f" were not asked within {SECONDS:.0f} s of an idle machine",
        )
    return Verdict.HOLDS, f"one order for all rows: {words}{seen.beside}"
