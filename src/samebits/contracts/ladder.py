"""The ladder: the level of each obligation, computed from receipts and from nothing else.

0 the contract loads, 1 types, 2 falsification, 3 property tests, 4 bounded proof; each stands on those below. No
evidence is "could not be judged", never a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from samebits.contracts.language import Contract
from samebits.contracts.receipts import Now, Receipt, expired

HIGHEST = 4
WHOLE = "*"
"""In place of an obligation: a receipt about the room as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How far one obligation got on one backend, and what keeps it from more."""

    obligation: str
    word: str
    backend: str
    level: int
    lacks: str
    """Why the next level is not reached."""
    failed: str = ""
    """A receipt, still valid, says that it does not hold."""
    stale: tuple[str, ...] = ()
    """Receipts that expired, each with its reason."""
    proofs: tuple[str, ...] = ()
    """At level 4: each proof's kind and bound."""
    inputs: int = 0
    killed: int = 0
    mutants: int = 0


def backends_of(contract: Contract, identifier: str) -> list[str]:
    """The backends an obligation is about; `device` is about both at once."""
    obligation = contract.obligations[identifier]
    listed = list(contract.subjects[obligation.subject].orders)
    return [", ".join(listed)] if obligation.name == "device" else listed


def standing(contract: Contract, identifier: str, backend: str, receipts: Sequence[Receipt], now: Now) -> Standing:
    """The level of one obligation on one backend."""
    obligation = contract.obligations[identifier]
    relevant = [
        each for each in receipts
        if each.obligation in (identifier, WHOLE) and (each.backend == backend or each.obligation == WHOLE)
    ]  # fmt: skip
    valid: list[Receipt] = []
    stale: list[str] = []
    for receipt in relevant:
        # A receipt about the whole room is not tied to one obligation's words.
        facts = now if receipt.obligation == identifier else _whole(receipt, now)
        reason = expired(receipt, facts)
        if reason:
            stale.append(f"level {receipt.level}: {reason}")
        else:
            valid.append(receipt)
    failed = next((f"level {each.level}: {each.detail}" for each in valid if not each.holds), "")
    level, lacks = 0, ""
    for wanted in range(1, HIGHEST + 1):
        lacks = _lack(contract, identifier, wanted, [each for each in valid if each.level == wanted])
        if lacks:
            break
        level = wanted
    drawn = [each for each in valid if each.level == 3]
    proofs = tuple(f"{each.method}: {each.bound}" for each in valid if each.level == HIGHEST and each.holds)
    killed = {mutant for each in valid for mutant in each.killed}
    return Standing(
        obligation=identifier, word=obligation.word, backend=backend, level=level, lacks=lacks, failed=failed,
        stale=tuple(stale), proofs=proofs, inputs=max((each.inputs for each in drawn), default=0),
        killed=len(killed & set(obligation.mutants)), mutants=len(obligation.mutants),
    )  # fmt: skip


def _whole(receipt: Receipt, now: Now) -> Now:
    return Now(
        obligation_digest=receipt.obligation_digest, source_digest=now.source_digest,
        dependencies=receipt.dependencies, environment={**now.environment, **receipt.environment},
    )  # fmt: skip


def _lack(contract: Contract, identifier: str, level: int, receipts: Sequence[Receipt]) -> str:
    """What is missing for a level, given its valid receipts, or ""."""
    obligation = contract.obligations[identifier]
    good = [each for each in receipts if each.holds]
    if not good:
        return f"level {level}: {'does not hold' if receipts else 'no receipt'}"
    if level in (2, 3):
        receipt = good[-1]
        alive = [mutant for mutant in obligation.mutants if mutant not in receipt.killed]
        if alive:
            return f"level {level}: {', '.join(alive)} not killed"
    if level == 3:
        draw = contract.domains[obligation.domain].draw
        if receipt.inputs < draw.calls:
            return f"level 3: {receipt.inputs} distinct inputs of {draw.calls}"
        missed = [recipe for recipe in draw.recipes if not receipt.classes.get(recipe)]
        if missed and obligation.name != "order":
            return f"level 3: {', '.join(missed)} never drawn"
    return ""


def level_of(standings: Sequence[Standing], backend: str) -> int | None:
    """A contract's level on a backend: the least of its obligations. None: nothing is about that backend."""
    levels = [each.level for each in standings if _about(each.backend, backend)]
    return min(levels) if levels else None


def _about(backend: str, wanted: str) -> bool:
    """What compares the CPU with a GPU is evidence about the GPU."""
    return backend == wanted or (wanted != "cpu" and wanted in backend.split(", "))
