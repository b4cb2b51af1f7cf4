"""Receipts: what was run, on what, with which outcome; and the files they are kept in, one line each.

A receipt speaks for one obligation on one backend at one level. It expires with the contract, the source or the machine
it names; its id is the hash of its content, so that an edited one is refused. Runs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

SCHEMA: Final = "samebits.receipt/1"
METHODS: Final = {
    1: ("types",),
    2: ("examples",),
    3: ("draws",),
    4: ("enumeration", "integers", "order", "dag", "artifact"),
}
"""What may stand behind each level."""


class ReceiptError(ValueError):
    """A receipt that cannot be believed: file, line, why."""


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
    obligation_digest: str
    source_digest: str
    checker_digest: str
    dependencies: dict[str, str]
    """Each contract this one depends on, transitively, with the digest of its words and its source."""
    environment: dict[str, str]
    seed: int = 0
    cases: int = 0
    """Comparisons made."""
    inputs: int = 0
    """Distinct inputs, by hash."""
    classes: dict[str, int] = field(default_factory=dict)
    """Cases by recipe."""
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

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """What it speaks about; a newer receipt with the same key takes its place."""
        return self.contract, self.obligation, self.backend, self.level, f"{self.method} {self.by}"

    @property
    def identity(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Now:
    """What receipts of an obligation are held against: the same facts, as they are at present."""

    obligation_digest: str
    source_digest: str
    dependencies: Mapping[str, str]
    environment: Mapping[str, str]


# A receipt made on a device that is not here cannot differ from it: it speaks for that device alone.
MACHINE: Final = {"cpu": ("processor", "torch", "instruction sets"), "triton": ("gpu", "torch", "triton")}


def expired(receipt: Receipt, now: Now) -> str:
    """Why a receipt no longer speaks, or ""."""
    if receipt.obligation_digest != now.obligation_digest:
        return "the contract has changed since"
    if receipt.source_digest != now.source_digest:
        return "the source has changed since"
    if receipt.dependencies != dict(now.dependencies):
        names = {**receipt.dependencies, **now.dependencies}
        changed = [name for name in names if receipt.dependencies.get(name) != now.dependencies.get(name)]
        return f"{', '.join(changed)} has changed since, on which it depends"
    backends = receipt.backend.split(", ")
    if "triton" in backends and now.environment.get("gpu") == "none":
        return ""
    for backend in backends:
        for key in MACHINE[backend]:
            if receipt.environment.get(key) != now.environment.get(key):
                return f"made with {key} {receipt.environment.get(key)!r}, here it is {now.environment.get(key)!r}"
    return ""


class Store:
    """A folder with one file a contract. Appending replaces the line that spoke about the same thing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, contract: str) -> list[Receipt]:
        """Every receipt of a contract; none where nothing was run. An edited line is a ReceiptError."""
        path = self.folder / f"{contract}.jsonl"
        if not path.is_file():
            return []
        return [_parsed(line, path, number) for number, line in enumerate(path.read_text().splitlines(), 1) if line]

    def write(self, receipts: Iterable[Receipt]) -> None:
        """Adds receipts, file by file; each file is replaced in one step."""
        by_contract: dict[str, list[Receipt]] = {}
        for receipt in receipts:
            by_contract.setdefault(receipt.contract, []).append(receipt)
        self.folder.mkdir(parents=True, exist_ok=True)
        for contract, added in by_contract.items():
            kept = {receipt.key: receipt for receipt in (*self.read(contract), *added)}
            lines = [
                json.dumps({"id": receipt.identity, **asdict(receipt)}, sort_keys=True)
                for _, receipt in sorted(kept.items())
            ]
            path = self.folder / f"{contract}.jsonl"
            beside = path.with_suffix(".new")
            beside.write_text("\n".join(lines) + "\n")
            beside.replace(path)


def _parsed(line: str, path: Path, number: int) -> Receipt:
    where = f"{path}:{number}"
    try:
        document: dict[str, Any] = json.loads(line)
        stated = document.pop("id")
        receipt = Receipt(**document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ReceiptError(f"{where}: no receipt: {' '.join(str(error).split())}") from error
    if receipt.schema != SCHEMA:
        raise ReceiptError(f"{where}: schema is {receipt.schema!r}; allowed: {SCHEMA}")
    if receipt.identity != stated:
        raise ReceiptError(f"{where}: {receipt.obligation}: content and id disagree; a receipt is made, never edited")
    return receipt
