"""The contract of a room as typed values: closed keys, resolved ids, known promises.

Knows no operator and runs nothing; the checker executes what stands here."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from samebits.contracts.orders import ORDERS
from samebits.contracts.strict_yaml import ContractError, Located, load

# The closed list. `order` says that the order revealed by measurement is the order declared, and replays bit for bit.
PROMISES = (
    "repeat", "batch", "padding", "chunk", "cache", "tile", "tensor", "micro", "data", "resume", "schedule", "device",
    "accuracy", "order",
)  # fmt: skip
BACKENDS = ("cpu", "triton")
FORMATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Equation:
    """What is computed, and the float64 reference that says it in code."""

    text: str
    reference: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """An importable function that is really called, and the order each backend keeps for each format."""

    object: str
    equation: str
    door: str
    orders: dict[str, dict[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """What inputs are made: shapes, recipes, formats, seeds."""

    shapes: list[list[int]]
    recipes: list[str]
    formats: list[str]
    seeds: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Obligation:
    """One promise of one subject on one domain, and the planted faults that it must catch."""

    subject: str
    promise: str
    domain: str
    mutants: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A planted fault: a function of the same signature that breaks the promise."""

    of: str
    object: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """One file, loaded and checked."""

    path: Path
    contract: str
    prefix: str
    version: str
    depends_on: list[str]
    equations: dict[str, Equation]
    subjects: dict[str, Subject]
    domains: dict[str, Domain]
    obligations: dict[str, Obligation]
    mutants: dict[str, Mutant]


_SECTIONS = {"equations": (Equation, "EQ"), "subjects": (Subject, "S"), "domains": (Domain, "D"),
             "obligations": (Obligation, "OB"), "mutants": (Mutant, "MU")}  # fmt: skip


def load_contract(path: Path) -> Contract:
    """The contract in `path`; anything unknown, missing, dangling or unused is a ContractError with its line."""
    document = load(path)
    _closed(document, {field.name for field in fields(Contract)} - {"path"}, path)
    sections: dict[str, Any] = {}
    for name, (kind, letters) in _SECTIONS.items():
        sections[name] = _section(
            document, name, kind, re.compile(rf"^{document['prefix']}-{letters}[1-9][0-9]*$"), path
        )
    plain = {name: document[name] for name in ("contract", "prefix", "version", "depends_on")}
    for name in ("contract", "prefix", "version"):
        _expect(isinstance(plain[name], str), path, document.lines[name], f"{name} must be text, got {plain[name]!r}")
    _expect(re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", plain["version"]) is not None, path, document.lines["version"],
            f"version must look like 1.0.0, got {plain['version']!r}")  # fmt: skip
    _expect(isinstance(plain["depends_on"], list), path, document.lines["depends_on"], "depends_on must be a list")
    for name in plain["depends_on"]:
        known = isinstance(name, str) and (path.parent.parent / name / path.name).is_file()
        _expect(
            known,
            path,
            document.lines["depends_on"],
            f"depends_on names {name!r}; no such contract lies beside this one",
        )
    contract = Contract(path=path, **plain, **sections)
    _resolve(contract, document)
    return contract


def _expect(condition: bool, path: Path, line: int, message: str) -> None:
    if not condition:
        raise ContractError(f"{path}:{line}: {message}")


def _closed(mapping: Located, allowed: set[str], path: Path, line: int = 1) -> None:
    unknown = sorted(set(mapping) - allowed)
    if unknown:
        raise ContractError(
            f"{path}:{mapping.lines[unknown[0]]}: unknown key {unknown[0]!r}; allowed: {', '.join(sorted(allowed))}"
        )
    missing = sorted(allowed - set(mapping))
    _expect(not missing, path, line, f"key {missing[0] if missing else ''!r} is missing")


def _section(document: Located, name: str, kind: type, pattern: re.Pattern[str], path: Path) -> dict[str, Any]:
    section, line = document[name], document.lines[name]
    _expect(
        isinstance(section, Located) and len(section) > 0, path, line, f"{name} must be a mapping with at least one id"
    )
    built = {}
    for identifier, body in section.items():
        at = section.lines[identifier]
        _expect(pattern.match(identifier) is not None, path, at, f"id {identifier!r} must look like {pattern.pattern}")
        _expect(isinstance(body, Located), path, at, f"{identifier} must be a mapping")
        _closed(body, {field.name for field in fields(kind)}, path, at)
        for field in fields(kind):
            wanted = {"str": str, "list": list, "dict": dict}[str(field.type).split("[")[0]]
            value = body[field.name]
            _expect(isinstance(value, wanted) and bool(value), path, body.lines[field.name],
                    f"{identifier}.{field.name} must be a non-empty {wanted.__name__}, got {value!r}")  # fmt: skip
        built[identifier] = kind(**body)
    return built


def _resolve(contract: Contract, document: Located) -> None:
    """Every name means something and every id is used."""
    used: set[str] = set()

    def refer(section: str, owner: str, identifier: str, line: int) -> None:
        known = getattr(contract, section)
        _expect(
            identifier in known,
            contract.path,
            line,
            f"{owner}: {identifier!r} is no id of {section}; known: {', '.join(known)}",
        )
        used.add(identifier)

    def one_of(owner: str, what: str, value: str, allowed: tuple[str, ...], line: int) -> None:
        _expect(
            value in allowed, contract.path, line, f"{owner}: unknown {what} {value!r}; known: {', '.join(allowed)}"
        )

    for identifier, subject in contract.subjects.items():
        line = document["subjects"].lines[identifier]
        refer("equations", identifier, subject.equation, line)
        for backend, orders in subject.orders.items():
            one_of(identifier, "backend", backend, BACKENDS, line)
            for format_name, order in orders.items():
                one_of(identifier, "format", format_name, FORMATS, line)
                one_of(identifier, "order", order, ORDERS, line)
    for identifier, domain in contract.domains.items():
        for format_name in domain.formats:
            one_of(identifier, "format", format_name, FORMATS, document["domains"].lines[identifier])
    for identifier, obligation in contract.obligations.items():
        line = document["obligations"].lines[identifier]
        one_of(identifier, "promise", obligation.promise, PROMISES, line)
        refer("subjects", identifier, obligation.subject, line)
        refer("domains", identifier, obligation.domain, line)
        for mutant in obligation.mutants:
            refer("mutants", identifier, mutant, line)
    for identifier, mutant_body in contract.mutants.items():
        refer("subjects", identifier, mutant_body.of, document["mutants"].lines[identifier])
    for name in _SECTIONS:
        for identifier in getattr(contract, name):
            unused = identifier not in used and name != "obligations"
            _expect(not unused, contract.path, document[name].lines[identifier], f"{identifier} is never used")
