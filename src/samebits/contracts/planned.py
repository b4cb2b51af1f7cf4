"""Contracts and obligations that are stated and bound to no code yet: what each waits for, and how it will be tried.

Nothing here is evidence and nothing is executed: a planned obligation is "not bound yet", and is deleted from its file
when a contract binds it. A file may speak of a contract that is bound; then it names what that one still lacks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from samebits.contracts.strict_yaml import Located, load
from samebits.contracts.structure import Place, build

FOLDER: Final = Path(__file__).with_name("planned")
_WORD: Final = r"[a-z][a-z0-9_]*"
_PREFIX: Final = r"[A-Z][A-Z0-9]*"
_TEST: Final = r"FALSIFY-[A-Z0-9_-]*[0-9]{3}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedObligation:
    """What will be asked, by which kind of predicate, how exactly, tried by which tests, killing which faults."""

    statement: str
    predicate: str
    """One word."""
    tolerance: str
    tests: list[str]
    mutants: list[str]
    """In words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One file: a contract, or the rest of one, and what must exist before it can be bound."""

    contract: str
    waits_for: str
    prefix: str | None = None
    """Of its ids; None where it has none."""
    depends_on: list[str] = field(default_factory=list)
    obligations: dict[str, PlannedObligation] = field(default_factory=dict)
    """Empty where the contract is only a knot of others."""


def planned(folder: Path = FOLDER) -> dict[str, Planned]:
    """Everything that is planned, by contract; a ContractError names the line of what is wrong."""
    found: dict[str, Planned] = {}
    seen: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        document = load(path)
        whole = build(Planned, document, Place(path, 1))
        _check(path, document, whole, seen)
        found[whole.contract] = whole
    if not found:
        raise ValueError(f"planned: {folder} holds no contract; one file each is needed")
    return found


def _check(path: Path, document: Located, whole: Planned, seen: dict[str, str]) -> None:
    """Names fit their file, ids fit the prefix, and no id or test stands twice in all files."""
    if whole.contract != path.stem:
        raise Place(path, document.lines["contract"]).fail(f"contract {whole.contract!r} is in {path.name}")
    if (whole.prefix is None) == bool(whole.obligations):
        raise Place(path, 1).fail("prefix and obligations belong together; allowed: both or neither")
    if whole.prefix is not None and re.fullmatch(_PREFIX, whole.prefix, re.ASCII) is None:
        raise Place(path, document.lines["prefix"]).fail(f"prefix must be capitals and digits, got {whole.prefix!r}")
    for name in whole.depends_on:
        if re.fullmatch(_WORD, name, re.ASCII) is None:
            raise Place(path, document.lines["depends_on"]).fail(f"{name!r} is not a contract's name")
    for identifier, obligation in whole.obligations.items():
        place = Place(path, document["obligations"].lines[identifier], identifier)
        if re.fullmatch(rf"{whole.prefix}-OB[1-9][0-9]*", identifier, re.ASCII) is None:
            raise place.fail(f"an id must look like {whole.prefix}-OB1")
        if re.fullmatch(_WORD, obligation.predicate, re.ASCII) is None:
            raise place.fail(f"predicate must be one word, got {obligation.predicate!r}")
        for test in obligation.tests:
            if re.fullmatch(_TEST, test, re.ASCII) is None:
                raise place.fail(f"a test must look like FALSIFY-TOK-001, got {test!r}")
        for name in (identifier, *obligation.tests):
            if name in seen:
                raise place.fail(f"{name} is already in {seen[name]}")
            seen[name] = f"{path.name} ({identifier})"
