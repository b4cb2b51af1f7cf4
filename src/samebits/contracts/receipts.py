"""Receipts: what was run, on what, with which outcome, and how one compares with what lies here now.

A receipt speaks for one obligation on one backend at one level, shown on one kind of machine. It names by digest all
that decides its verdict. Its id is the hash of its content, so that an edited one is noticed; its `result` is what a
replay must give again bit for bit, so that an invented one is noticed too. Runs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

SCHEMA: Final = "samebits.receipt/2"
METHODS: Final = {
    1: ("types",),
    2: ("examples",),
    3: ("draws",),
    4: ("enumeration", "integers", "order", "dag", "artifact"),
}
"""What may stand behind each level."""
WHOLE: Final = "*"
"""In place of an obligation: a receipt about all of a contract's code."""

FRESH, ELSEWHERE, STALE, FALSE = "fresh here", "shown elsewhere", "stale", "false"
"""How a receipt compares with the present; the first two count."""

SOURCES: Final = {
    "kernel": "the code of the kernel",
    "headers": "shared C++ or thread code",
    "flags": "the compiler's flags",
    "generator": "the generator of inputs",
    "promise": "the check, its reference or its planted faults",
    "checker": "the checker",
    "contract": "the contract's words",
}
"""Digests that void a receipt where they differ, in words."""
ANYWHERE: Final = "any machine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What decides a verdict, as far as it concerns one receipt: sources by digest, and where it was run."""

    sources: Mapping[str, str]
    dependencies: Mapping[str, str]
    """Each contract this one depends on, transitively, with the digest of its words and its code."""
    where: Mapping[str, str]
    """Machine, versions, compiler and library."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """One run of one obligation."""

    contract: str
    obligation: str
    backend: str
    level: int
    method: str
    """How it was shown; at level 4 the kind of proof."""
    by: str
    """What was executed: the predicate, or the proof's import path."""
    holds: bool
    sources: dict[str, str]
    dependencies: dict[str, str]
    where: dict[str, str]
    result: str
    """SHA-256 of what a replay must give again: cases and their outputs, or what the proof decided."""
    seed: int = 0
    cases: int = 0
    """Comparisons made."""
    calls: int = 0
    """Calls of the subject on distinct cases."""
    classes: dict[str, int] = field(default_factory=dict)
    """Cases of which something was compared, by recipe."""
    planted: int = 0
    killed: dict[str, str] = field(default_factory=dict)
    """Mutant to the input that killed it."""
    bound: str = ""
    """What a proof was shown for."""
    detail: str = ""
    seconds: float = 0.0
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if self.method not in METHODS.get(self.level, ()):
            allowed = ", ".join(METHODS.get(self.level, ("nothing",)))
            raise ValueError(f"level {self.level} is not shown by {self.method!r}; allowed: {allowed}")
        # Else one line would speak for every obligation at once, and no run would ever give it again.
        if (self.obligation == WHOLE) != (self.level == 1):
            allowed = repr(WHOLE) if self.level == 1 else "one obligation"
            raise ValueError(f"level {self.level} is shown for {self.obligation!r}; allowed: {allowed}")

    @property
    def machine(self) -> str:
        """The kind of machine it was shown on."""
        return machine_class(self.where)

    @property
    def key(self) -> tuple[str, str, str, int, str, str]:
        """What it speaks about and where; a newer receipt with the same key takes its place."""
        return self.contract, self.obligation, self.backend, self.level, f"{self.method} {self.by}", self.machine

    @property
    def identity(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        name = self.obligation if self.obligation != WHOLE else f"{self.contract} types"
        by = f" by {self.by.rpartition(':')[2]}" if self.level == 4 else ""
        return f"{name} level {self.level}{by} on {self.backend} ({self.machine})"


def machine_class(where: Mapping[str, str]) -> str:
    """ "x86-64", "NVIDIA H200", both, or "any machine" where no machine decides."""
    kinds = [where["architecture"]] if "architecture" in where else []
    kinds += [where["gpu"].partition(" (")[0]] if "gpu" in where else []
    return " and ".join(kinds) or ANYWHERE


def machine_words(where: Mapping[str, str]) -> str:
    """The kind of machine with its processor: "x86-64 (Intel Xeon)"."""
    processor = f" ({where['processor']})" if where.get("processor") else ""
    kinds = [f"{where['architecture']}{processor}"] if "architecture" in where else []
    kinds += [where["gpu"].partition(" (")[0]] if "gpu" in where else []
    return " and ".join(kinds) or ANYWHERE


@dataclass(frozen=True, slots=True)
class Compared:
    """A receipt beside the present."""

    receipt: Receipt
    standing: str
    """One of the four words above."""
    reasons: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        return self.standing in (FRESH, ELSEWHERE)

    def __str__(self) -> str:
        why = f": {'; '.join(self.reasons)}" if self.reasons else ""
        return f"{self.receipt}: {self.standing}{why}"


def compared(receipt: Receipt, now: Facts | None) -> Compared:
    """How a receipt stands; None for `now` where its contract asks for no such thing any more."""
    if now is None:
        return Compared(receipt, STALE, ("the contract names no such obligation or proof",))
    changed = [
        f"{name}: {words} changed"
        for name, words in SOURCES.items()
        if receipt.sources.get(name) != now.sources.get(name)
    ]
    names = {**receipt.dependencies, **now.dependencies}
    changed += [
        f"dependencies: {name} changed"
        for name in names
        if receipt.dependencies.get(name) != now.dependencies.get(name)
    ]
    if changed:
        return Compared(receipt, STALE, tuple(changed))
    other = tuple(
        f"{name} {receipt.where.get(name, 'none')} there, {now.where.get(name, 'none')} here"
        for name in {**receipt.where, **now.where}
        if receipt.where.get(name) != now.where.get(name)
    )
    return Compared(receipt, ELSEWHERE if other else FRESH, other)
