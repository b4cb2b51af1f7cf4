"""The ladder: the level of each obligation on each backend, computed from receipts and from nothing else.

0 the contract loads, 1 types, 2 falsification, 3 property tests, 4 bounded proof; each stands on those below. A receipt
counts while its sources are those that lie here, wherever it was made. No evidence is "could not be judged"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from samebits.contracts.language import Contract
from samebits.contracts.receipts import ANYWHERE, FRESH, STALE, WHOLE, Compared, Receipt, machine_words

HIGHEST = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How far one obligation got on one backend, and what keeps it from more."""

    obligation: str
    word: str
    backend: str
    level: int
    required: int
    lacks: str
    """Why the next level is not reached."""
    failed: str = ""
    """A receipt that counts says that it does not hold."""
    stale: tuple[str, ...] = ()
    """Receipts that no longer count, each with what changed."""
    proofs: tuple[str, ...] = ()
    """Each proof that counts, by kind and bound."""
    shown_on: tuple[str, ...] = ()
    """Machines whose receipts count."""
    here: int = 0
    """Receipts that count and were made on what is here."""
    counted: int = 0
    """Receipts that count."""
    calls: int = 0
    killed: int = 0
    mutants: int = 0

    @property
    def verdict(self) -> str:
        """The one vocabulary of status, graph and audit."""
        if self.failed:
            return "does not hold"
        return "holds" if self.level >= self.required else "could not be judged"


def backends_of(contract: Contract, identifier: str) -> list[str]:
    """The backends an obligation is about; `device` is about both at once."""
    obligation = contract.obligations[identifier]
    listed = list(contract.subjects[obligation.subject].orders)
    return [", ".join(listed)] if obligation.name == "device" else listed


def about(backend: str, wanted: str) -> bool:
    """Whether evidence on `backend` is about `wanted`: what compares the CPU with a GPU is about the GPU."""
    return backend == wanted or (wanted != "cpu" and wanted in backend.split(", "))


def backend_asked(backend: str) -> str:
    """The backend whose required level an obligation on `backend` has to reach."""
    return backend.rpartition(", ")[2]


def standing(contract: Contract, identifier: str, backend: str, receipts: Sequence[Compared]) -> Standing:
    """The level of one obligation on one backend."""
    obligation = contract.obligations[identifier]
    relevant = [each for each in receipts if _speaks(each.receipt, identifier, backend)]
    valid = [each.receipt for each in relevant if each.counts]
    level, lacks = 0, ""
    for wanted in range(1, HIGHEST + 1):
        lacks = _lack(contract, identifier, backend, wanted, [each for each in valid if each.level == wanted])
        if lacks:
            break
        level = wanted
    own = [each for each in valid if each.obligation == identifier]
    machines = [machine_words(each.where) for each in own if each.machine != ANYWHERE]
    killed = {mutant for each in own for mutant in each.killed}
    return Standing(
        obligation=identifier,
        word=obligation.word,
        backend=backend,
        level=level,
        required=contract.required(backend_asked(backend)),
        lacks=lacks,
        failed=next((f"level {each.level} on {each.machine}: {each.detail}" for each in own if not each.holds), ""),
        stale=_stale(relevant),
        shown_on=tuple(dict.fromkeys(machines)),
        counted=len(own),
        here=sum(each.standing == FRESH and each.receipt.obligation == identifier for each in relevant),
        proofs=tuple(f"{each.method}: {each.bound}" for each in own if each.level == HIGHEST and each.holds),
        calls=max((each.calls for each in own if each.level == 3), default=0),
        killed=len(killed & set(obligation.mutants)),
        mutants=len(obligation.mutants),
    )


def _speaks(receipt: Receipt, identifier: str, backend: str) -> bool:
    if receipt.obligation == WHOLE:
        return receipt.backend == backend_asked(backend)
    return receipt.obligation == identifier and receipt.backend == backend


def _stale(receipts: Sequence[Compared]) -> tuple[str, ...]:
    """What no longer counts, where nothing that counts says the same; of several that a machine made by one method, the
    one since which least has changed."""
    said = {each.receipt.key[:5] for each in receipts if each.counts}
    nearest: dict[tuple[int, str, str], Compared] = {}
    for each in receipts:
        if each.standing == STALE and each.receipt.key[:5] not in said:
            place = each.receipt.level, each.receipt.method, each.receipt.machine
            nearest[place] = min(nearest.get(place, each), each, key=lambda one: len(one.reasons))
    return tuple(
        f"level {each.receipt.level} ({each.receipt.machine}): {'; '.join(each.reasons)}" for each in nearest.values()
    )


def _lack(contract: Contract, identifier: str, backend: str, level: int, receipts: Sequence[Receipt]) -> str:
    """What is missing for a level, given its receipts that count, or ""."""
    if level == HIGHEST:
        return _unproved(contract, identifier, backend, receipts)
    if not receipts:
        return f"level {level}: no receipt that counts"
    lacks = [_short_of(contract, identifier, each) for each in receipts]
    # What one machine showed does not mend what another refuted.
    refuted = [lack for each, lack in zip(receipts, lacks, strict=True) if not each.holds]
    return refuted[0] if refuted else min(lacks, key=len)


def _short_of(contract: Contract, identifier: str, receipt: Receipt) -> str:
    obligation, level = contract.obligations[identifier], receipt.level
    if not receipt.holds:
        return f"level {level}: does not hold"
    if level == 1:
        return ""
    alive = [mutant for mutant in obligation.mutants if mutant not in receipt.killed]
    if alive:
        return f"level {level}: {', '.join(alive)} not killed"
    if level == 3:
        draw = contract.domains[obligation.domain].draw
        if receipt.calls < draw.calls:
            return f"level 3: {receipt.calls} calls of {draw.calls}"
        missed = [recipe for recipe in draw.recipes if not receipt.classes.get(recipe)]
        if missed and obligation.name != "order":
            return f"level 3: {', '.join(missed)} never drawn"
    return ""


def _unproved(contract: Contract, identifier: str, backend: str, receipts: Sequence[Receipt]) -> str:
    """Every proof that the contract declares for the obligation on the backend, each proved; none is not enough."""
    declared = contract.proofs_of(identifier, backend)
    if not declared:
        return f"level 4: no proof is declared for {backend}"
    for name, entry in declared.items():
        own = [each for each in receipts if (each.method, each.by) == (entry.kind, entry.by)]
        if not own:
            return f"level 4: {name} has no receipt that counts"
        if not all(each.holds for each in own):
            return f"level 4: {name} does not hold"
    return ""


def level_of(standings: Sequence[Standing], backend: str) -> int | None:
    """A contract's level on a backend: the least of its obligations. None: nothing is about that backend."""
    levels = [each.level for each in standings if about(each.backend, backend)]
    return min(levels) if levels else None
