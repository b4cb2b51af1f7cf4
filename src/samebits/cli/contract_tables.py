"""Tables of contracts: the matrix of levels, the mutants and their killers, the holes of an audit.

Prints what it is given and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from samebits.cli.console import VERDICT_STYLES, output, print_json
from samebits.contracts.receipts import WHOLE, Receipt

if TYPE_CHECKING:
    from samebits.checker.status import ContractStanding, Hole
    from samebits.contracts.registry import Component


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, justify="right" if header.endswith("#") else "left", overflow="fold")
    return table


def _level(level: int | None, required: int) -> Text:
    if level is None:
        return Text("-", style="dim")
    style = "green" if level >= required else "yellow" if level else "red"
    return Text(f"{level} of {required}", style=style)


def print_matrix(
    found: Mapping[str, ContractStanding],
    whole: Mapping[str, Mapping[str, int | None]],
    backend: str | None,
    obligations: bool,
) -> None:
    """One line a contract and backend: level, verdict, where it was shown, what is fresh here, what is missing."""
    table = _table(
        "contract",
        "backend",
        "level",
        "all below",
        "verdict",
        "proved #",
        "drawn #",
        "of #",
        "killed",
        "where it was shown, and what is missing",
    )
    rows = [(each, on) for each in found.values() for on in each.required if backend in (None, on)]
    for each, on in rows:
        own, required = each.on(on), each.required[on]
        table.add_row(
            each.name,
            on,
            _level(each.levels[on], required),
            _level(whole[on][each.name], required),
            Text(each.verdict(on), style=VERDICT_STYLES[each.verdict(on)]),
            str(sum(one.level >= 4 for one in own)),
            str(sum(one.level == 3 for one in own)),
            str(len(own)),
            f"{sum(one.killed for one in own)} of {sum(one.mutants for one in own)}",
            Text("; ".join(filter(None, [_shown(each, on), _missing(each, on)])), style="dim"),
        )
    output().print(table)
    for line in (line for each in found.values() for line in each.false):
        output().print(Text(f"false: {line}", style="bold red"))
    if obligations:
        _print_obligations(found)
    verdicts = [each.verdict(on) for each, on in rows]
    counted_verdicts = ", ".join(f"{verdicts.count(word)} {word}" for word in VERDICT_STYLES if word in verdicts)
    output().print(f"\n{len(found)} contracts, {len(rows)} with their backends: {counted_verdicts}")


def _shown(each: ContractStanding, backend: str) -> str:
    """ "shown on x86-64 (Intel Xeon) and NVIDIA H200; here: 12 of 40 fresh"."""
    here, counted = each.here(backend)
    machines = each.shown_on(backend)
    named = " and ".join(filter(None, [", ".join(machines[:-1]), *machines[-1:]]))
    return f"shown on {named}; here: {here} of {counted} fresh" if machines else ""


def _missing(each: ContractStanding, backend: str) -> str:
    """What the lowest obligation lacks, and what changed since."""
    lowest = each.least(backend)
    short = lowest is not None and lowest.verdict != "holds"
    lacks = f"{lowest.obligation} {lowest.word}: {lowest.failed or lowest.lacks}" if lowest and short else ""
    stale = ", ".join(f"{reason} ({count})" for reason, count in each.stale(backend).items())
    old = f"{each.outdated} of an older schema" if each.outdated else ""
    return "; ".join(filter(None, [lacks, f"stale: {stale}" if stale else "", old]))


def status_document(each: ContractStanding, whole: Mapping[str, Mapping[str, int | None]]) -> dict[str, Any]:
    """All that status knows of a contract, for --json."""
    backends = {
        on: {
            "level": each.levels[on],
            "required": each.required[on],
            "with_dependencies": whole[on][each.name],
            "verdict": each.verdict(on),
            "shown_on": each.shown_on(on),
            "fresh_here": each.here(on)[0],
            "counted": each.here(on)[1],
            "stale": each.stale(on),
        }
        for on in each.required
    }
    obligations = [
        {
            "id": one.obligation,
            "asks": one.word,
            "backend": one.backend,
            "level": one.level,
            "required": one.required,
            "verdict": one.verdict,
            "lacks": one.lacks,
            "failed": one.failed,
            "stale": list(one.stale),
            "proofs": list(one.proofs),
            "shown_on": list(one.shown_on),
            "calls": one.calls,
        }
        for one in each.standings
    ]
    receipts = [
        {
            "receipt": str(one.receipt),
            "id": one.receipt.identity,
            "standing": one.standing,
            "reasons": list(one.reasons),
        }
        for one in each.receipts
    ]
    return {
        "levels": each.levels,
        "backends": backends,
        "obligations": obligations,
        "receipts": receipts,
        "false": list(each.false),
        "outdated": each.outdated,
    }


def _print_obligations(found: Mapping[str, ContractStanding]) -> None:
    table = _table("obligation", "asks", "backend", "level", "calls #", "mutants", "proofs, or what is missing")
    for each in found.values():
        for one in each.standings:
            why = one.failed or "; ".join(one.stale) or (one.level < one.required and one.lacks)
            table.add_row(
                one.obligation,
                one.word,
                one.backend,
                _level(one.level, one.required),
                str(one.calls),
                f"{one.killed} of {one.mutants}",
                Text(why or "; ".join(one.proofs) or one.lacks, style="dim"),
            )
    output().print()
    output().print(table)


def print_receipts(made: Sequence[Receipt], ran: int, errors: Sequence[str]) -> None:
    """What a run of `prove` gave."""
    table = _table("obligation", "level", "by", "backend", "verdict", "cases #", "calls #", "mutants", "seconds #")
    for each in made:
        verdict = "holds" if each.holds else "does not hold"
        name = each.obligation if each.obligation != WHOLE else each.contract
        killed = f"{len(each.killed)} of {each.planted}" if each.planted else ""
        table.add_row(
            name,
            str(each.level),
            each.method,
            each.backend,
            Text(verdict, style="green" if each.holds else "bold red"),
            str(each.cases),
            str(each.calls),
            killed,
            f"{each.seconds:.1f}",
        )
    if made:
        output().print(table)
    for each in made:
        if not each.holds:
            output().print(Text(f"{each.obligation} does not hold: {each.detail}", style="bold red"))
        elif len(each.killed) < each.planted:
            survived = each.planted - len(each.killed)
            output().print(Text(f"{each.obligation}: {survived} survived level {each.level}", style="bold red"))
    for error in errors:
        output().print(Text(error, style="yellow"))
    wrong = sum(not each.holds for each in made)
    # One run of a proof, or of mypy, speaks for several obligations.
    runs = {
        (each.contract, each.level, each.by, each.obligation if each.level in (2, 3) else "", each.seconds)
        for each in made
    }
    seconds = sum(run[-1] for run in runs)
    machines = f" on {', '.join(dict.fromkeys(each.machine for each in made))}" if made else ""
    output().print(
        f"\n{ran} run, {len(made)} receipts{machines}, {wrong} do not hold, "
        f"{len(errors)} could not be judged, {seconds:.0f} s of work"
    )


def print_mutants(components: Mapping[str, Component], found: Mapping[str, ContractStanding], as_json: bool) -> int:
    """Every mutant and the input that killed it, by receipts that count. Exit code: 0 if all are dead."""
    rows = []
    for name, component in components.items():
        contract, killers = component.contract(), dict[tuple[str, str], str]()
        for receipt in (each.receipt for each in found[name].receipts if each.counts):
            killers |= {(receipt.obligation, mutant): text for mutant, text in receipt.killed.items()}
        for identifier, obligation in contract.obligations.items():
            for mutant in obligation.mutants:
                rows.append(
                    (
                        mutant,
                        contract.mutants[mutant].object.rpartition(":")[2],
                        identifier,
                        obligation.word,
                        killers.get((identifier, mutant), ""),
                    )
                )
    alive = sum(not row[-1] for row in rows)
    kinds = {row[0] for row in rows}
    if as_json:
        keys = ("mutant", "fault", "obligation", "asks", "killed_by")
        print_json({"mutants": [dict(zip(keys, row, strict=True)) for row in rows], "alive": alive})
        return 1 if alive else 0
    table = _table("mutant", "fault", "obligation", "asks", "killed by")
    for row in rows:
        table.add_row(*row[:-1], row[-1] or Text("alive, or never run by what counts", style="bold red"))
    output().print(table)
    output().print(f"\n{len(kinds)} mutants, {len(rows)} times asked for; killed {len(rows) - alive} of {len(rows)}")
    return 1 if alive else 0


def print_holes(
    components: Mapping[str, Component],
    found: Mapping[str, ContractStanding],
    broken: Sequence[Hole],
    waiting: Mapping[str, Sequence[str]],
) -> None:
    """The trail of each contract in numbers, then every hole."""
    table = _table(
        "contract", "works #", "equations #", "obligations #", "tests #", "subjects #", "proofs #", "receipts ok #"
    )
    for name, component in components.items():
        contract = component.contract()
        good = sum(one.verdict == "holds" for one in found[name].standings)
        table.add_row(
            name,
            *map(
                str,
                (
                    len(contract.refs),
                    len(contract.equations),
                    len(contract.obligations),
                    len(contract.tests),
                    len(contract.subjects),
                    len(contract.proofs),
                ),
            ),
            f"{good} of {len(found[name].standings)}",
        )
    output().print(table)
    for each in broken:
        output().print(Text(f"hole: {each.contract} {each.identifier}: {each.what}", style="yellow"))
    if waiting:
        output().print(f"\nnot bound yet, never counted ({sum(map(len, waiting.values()))} obligations):")
        for name, identifiers in waiting.items():
            output().print(Text(f"  {name}: {', '.join(identifiers) or 'no obligation of its own'}", style="dim"))
    output().print(f"\n{len(components)} contracts, {len(broken)} holes")
