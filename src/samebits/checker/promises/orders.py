"""The order found by measurement: one for every number of rows and every place among them, replayed bit for bit.

Where a contract declares an order, it must be that one. Rows and terms are the first two sizes of a shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from samebits.checker.cases import Case
from samebits.checker.driving import CallError, Setting
from samebits.checker.outcome import CaseError, Compared
from samebits.checker.revealing import reveal_row
from samebits.contracts.orders import declared_order
from samebits.numerics.order import digest
from samebits.numerics.picture import describe
from samebits.numerics.reveal import Revelation
from samebits.records.report import UnjudgedError


def order(setting: Setting, cases: Iterable[Case]) -> Iterator[Compared]:
    """One order for all sizes, and the declared one where one is declared."""
    if setting.spec.probe is None:
        raise UnjudgedError(f"the output of {setting.spec.name} does not show its sum")
    # Recipe and seed do not matter to probes: one case stands for each size and format.
    by_terms: dict[tuple[str, int], dict[int, Case]] = {}
    for case in cases:
        by_terms.setdefault((case.format, case.shape[1]), {}).setdefault(case.shape[0], case)
    for (format, terms), sizes in by_terms.items():
        yield from _one_order(setting, format, terms, sizes)


def _one_order(setting: Setting, format: str, terms: int, sizes: dict[int, Case]) -> Iterator[Compared]:
    declared = setting.orders.get(format)
    expected = digest(declared_order(declared, terms)) if declared else ""
    found: dict[int, str] = {}
    descriptions: dict[str, str] = {}
    for rows, case in sizes.items():
        for row in sorted({0, rows // 2, rows - 1}):
            try:
                revelation = reveal_row(setting, terms, rows, row, format)
            except CallError as reason:
                raise CaseError(case, reason) from reason
            place = f"row {row} of {rows}, {terms} terms"
            problem = _problem(revelation)
            if problem or revelation.order is None:
                yield Compared(case, f"{place}: {problem}")
                return
            identity = digest(revelation.order)
            descriptions[identity] = describe(revelation.order)
            if declared and identity != expected:
                wanted = describe(declared_order(declared, terms))
                yield Compared(case, f"{place}: found {descriptions[identity]}; declared {declared}: {wanted}")
                return
            if found.setdefault(rows, identity) != identity:
                yield Compared(case, f"{place}: {descriptions[identity]}; row 0: {descriptions[found[rows]]}")
                return
            note = f"{revelation.replayed} of {revelation.replay_total} vectors replayed for each"
            yield Compared(case, note=note, inputs=revelation.replay_total)
    if len(descriptions) > 1:
        several = _several(found, descriptions, terms)
        yield Compared(next(iter(sizes.values())), several, again=f"--format {format}")


def _problem(revelation: Revelation) -> str:
    """Why a revelation is no pass; a callable that cannot be judged is passed on as such."""
    if revelation.holds:
        return ""
    words, _, reason = revelation.verdict.partition(": ")
    if words == "could not be judged":
        raise UnjudgedError(reason)
    return f"the order found does not replay: {reason}"


def _several(found: dict[int, str], descriptions: dict[str, str], terms: int) -> str:
    parts = []
    for identity, words in descriptions.items():
        sizes = ", ".join(str(rows) for rows, each in found.items() if each == identity)
        parts.append(f"rows {sizes} use {words} [{identity[:12]}]")
    return f"{len(parts)} orders for {terms} terms: {'; '.join(parts)}"
