"""Tables of contracts: the matrix of levels, the mutants and their killers, the holes of an audit.

Prints what it is given and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from samebits.cli.console import output, print_json
from samebits.contracts.receipts import Receipt, Store

if TYPE_CHECKING:
    from samebits.checker.standing import ContractStanding, Hole
    from samebits.contracts.ladder import Standing
    from samebits.contracts.registry import Room

LADDER = ("0 loads", "1 types", "2 falsified", "3 drawn", "4 proved")


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, justify="right" if header.endswith("#") else "left", overflow="fold")
    return table


def _level(level: int | None, required: int) -> Text:
    if level is None:
        return Text("-", style="dim")
    return Text(str(level), style="green" if level >= required else "yellow" if level else "red")


def print_matrix(found: Mapping[str, ContractStanding], whole: Mapping[str, Mapping[str, int | None]],
                 obligations: bool) -> None:  # fmt: skip
    """One line a contract; with denominators."""
    table = _table("contract", "wants", "cpu", "with what it needs", "triton", "proved #", "drawn #", "of #",
                   "mutants killed", "stale #", "what keeps it from more")  # fmt: skip
    for name, each in found.items():
        own = [one for one in each.standings if one.backend == "cpu"]
        killed, planted = each.mutants
        table.add_row(
            name, str(each.required), _level(each.levels["cpu"], each.required),
            _level(whole["cpu"][name], each.required), _level(each.levels["triton"], each.required),
            str(sum(one.level >= 4 for one in own)),
            str(sum(one.level == 3 for one in own)), str(len(own)), f"{killed} of {planted}", str(each.stale),
            Text(_least(own), style="dim"),
        )  # fmt: skip
    output().print(table)
    if obligations:
        _print_obligations(found)
    levels = [each.levels["cpu"] or 0 for each in found.values()]
    counted = ", ".join(f"{levels.count(level)} at {LADDER[level]}" for level in range(4, -1, -1) if level in levels)
    output().print(f"\n{len(found)} contracts on the CPU: {counted}")


def _least(own: Sequence[Standing]) -> str:
    """What the lowest obligation lacks."""
    lowest = min(own, key=lambda one: one.level, default=None)
    return f"{lowest.obligation} {lowest.word}: {lowest.lacks}" if lowest is not None and lowest.lacks else ""


def _print_obligations(found: Mapping[str, ContractStanding]) -> None:
    table = _table("obligation", "asks", "backend", "level", "inputs #", "mutants", "proofs, or what is missing")
    for each in found.values():
        for one in each.standings:
            why = one.failed or "; ".join(one.stale) or "; ".join(one.proofs) or one.lacks
            table.add_row(one.obligation, one.word, one.backend, _level(one.level, each.required), str(one.inputs),
                          f"{one.killed} of {one.mutants}", Text(why, style="dim"))  # fmt: skip
    output().print()
    output().print(table)


def print_receipts(made: Sequence[Receipt], ran: int, errors: Sequence[str]) -> None:
    """What a run of `prove` gave."""
    table = _table("obligation", "level", "by", "backend", "verdict", "cases #", "inputs #", "mutants", "seconds #")
    for each in made:
        verdict = "holds" if each.holds else "does not hold"
        name = each.obligation if each.obligation != "*" else each.contract
        killed = f"{len(each.killed)} of {each.planted}" if each.planted else ""
        table.add_row(name, str(each.level), each.method, each.backend,
                      Text(verdict, style="green" if each.holds else "bold red"), str(each.cases), str(each.inputs),
                      killed, f"{each.seconds:.1f}")  # fmt: skip
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
    output().print(f"\n{ran} run, {len(made)} receipts, {len(errors)} could not be judged")


def print_mutants(rooms: Mapping[str, Room], store: Store, as_json: bool) -> int:
    """Every mutant of the registry, what it is, and the input that killed it. Exit code: 0 if all are dead."""
    rows = []
    for name, room in rooms.items():
        contract, killers = room.contract(), dict[tuple[str, str], Receipt]()
        for receipt in store.read(name):
            killers |= {(receipt.obligation, mutant): receipt for mutant in receipt.killed}
        for identifier, obligation in contract.obligations.items():
            for mutant in obligation.mutants:
                found = killers.get((identifier, mutant))
                rows.append((mutant, contract.mutants[mutant].object.rpartition(":")[2], identifier, obligation.word,
                             found.killed[mutant] if found else ""))  # fmt: skip
    alive = sum(not row[-1] for row in rows)
    kinds = {row[0] for row in rows}
    if as_json:
        keys = ("mutant", "fault", "obligation", "asks", "killed_by")
        print_json({"mutants": [dict(zip(keys, row, strict=True)) for row in rows], "alive": alive})
        return 1 if alive else 0
    table = _table("mutant", "fault", "obligation", "asks", "killed by")
    for row in rows:
        table.add_row(*row[:-1], row[-1] or Text("alive, or never run", style="bold red"))
    output().print(table)
    output().print(f"\n{len(kinds)} mutants, {len(rows)} times asked for; killed {len(rows) - alive} of {len(rows)}")
    return 1 if alive else 0


def print_holes(rooms: Mapping[str, Room], found: Mapping[str, ContractStanding], broken: Sequence[Hole],
                waiting: Mapping[str, Sequence[str]]) -> None:  # fmt: skip
    """The trail of each contract in numbers, then every hole."""
    table = _table(
        "contract", "works #", "equations #", "obligations #", "tests #", "subjects #", "proofs #", "receipts ok #"
    )
    for name, room in rooms.items():
        contract = room.contract()
        good = sum(one.level >= contract.required(one.backend.rpartition(", ")[2]) for one in found[name].standings)
        table.add_row(name, *map(str, (len(contract.refs), len(contract.equations), len(contract.obligations),
                      len(contract.tests), len(contract.subjects), len(contract.proofs))),
                      f"{good} of {len(found[name].standings)}")  # fmt: skip
    output().print(table)
    for each in broken:
        output().print(Text(f"hole: {each.contract} {each.identifier}: {each.what}", style="yellow"))
    if waiting:
        output().print(f"\nnot bound yet, never counted ({sum(map(len, waiting.values()))} obligations):")
        for name, identifiers in waiting.items():
            output().print(Text(f"  {name}: {', '.join(identifiers) or 'no obligation of its own'}", style="dim"))
    output().print(f"\n{len(rooms)} contracts, {len(broken)} holes")
