"""The contract of a component as typed values: closed keys, stable ids, known words.

Knows no operator and runs nothing; the checker executes what stands here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

# The closed list. `order` says that the order revealed by measurement is the order declared, and replays bit for bit.
PROMISES = (
    "repeat",
    "batch",
    "padding",
    "chunk",
    "cache",
    "tile",
    "tensor",
    "micro",
    "data",
    "resume",
    "schedule",
    "device",
    "accuracy",
    "order",
)
BACKENDS = ("cpu", "triton")
FORMATS = ("float32", "bfloat16", "float16")
TOLERANCES: Final = {
    "bitwise": (),
    "ulp": ("value",),
    "abs": ("value", "why"),
    "rel": ("value", "to", "why"),
    "derived": ("bound",),
}
"""Each kind with the keys it needs; no kind takes another's."""
DERIVED: Final = {"derived": True}
"""Marks a list that follows from the rest where it is left out, and is a mistake where it is empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A published work and where in it the equation stands."""

    work: str
    locator: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """What every subject of the contract does with numbers. Orders stand with the subjects."""

    accumulator: str
    fused: str
    """Which operations round once: "as written", "none" or "every product of a chain"."""
    flush_to_zero: bool
    tf32: bool
    atomics: bool


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
    spec: str
    orders: dict[str, dict[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """What a property is tried on beyond the cases written down."""

    sizes: list[str]
    """One an axis: "1..40" or "16, 32, 64"."""
    recipes: list[str]
    calls: int = 10_000
    """Calls of the subject at least, each on a case that no other call has."""

    def axes(self) -> list[Sequence[int]]:
        """For each axis the sizes it may have."""
        return [sizes_of(text) for text in self.sizes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """What inputs are made: shapes, recipes, formats, seeds; and from what more are drawn."""

    shapes: list[list[int]]
    recipes: list[str]
    formats: list[str]
    seeds: list[int]
    draw: Draw


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """How far a result may be from what is asked: bitwise, or a kind with all that it needs."""

    kind: str
    value: float | None = None
    to: str | None = None
    bound: str | None = None
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Obligation:
    """A predicate of one subject on one domain, the tests that try it, and the planted faults that it must catch."""

    subject: str = ""
    """Left out where the contract has one alone."""
    predicate: dict[str, Any]
    """`name`: a promise, a predicate of the library, or module:function; all else are its parameters."""
    domain: str
    tolerance: Tolerance = field(default_factory=lambda: Tolerance(kind="bitwise"))
    tests: list[str] = field(default_factory=list, metadata=DERIVED)
    """Left out: those that name the obligation, in the order of the file."""
    mutants: list[str]

    @property
    def name(self) -> str:
        """A promise, a predicate of the library, or module:function."""
        return str(self.predicate["name"])

    @property
    def word(self) -> str:
        """What is asked, in one word."""
        return self.name.rpartition(":")[2]

    @property
    def parameters(self) -> dict[str, Any]:
        return {key: value for key, value in self.predicate.items() if key != "name"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Test:
    """A falsification test: what is predicted, on which inputs, and what it means if it fails."""

    obligation: str
    prediction: str
    if_fails: str
    examples: list[str] = field(default_factory=list, metadata=DERIVED)
    """Cases as the checker prints them: "33x257 normal float32 seed 1". Left out: the ends of the domain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofEntry:
    """What proves the obligations for a bound, in one of the kinds of proof."""

    obligations: list[str]
    kind: str
    backends: list[str]
    """Whose code it is about; it says nothing about another's."""
    object: str = ""
    """A function without arguments that returns the proof, or the finite sets to enumerate. Left out where the kind
    alone says how: the checker derives the proof from what the component declares."""

    @property
    def by(self) -> str:
        """What carries it out, as a receipt names it."""
        return self.object or self.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A planted fault: a function of the same signature that breaks the promise."""

    of: str
    object: str
    breaks: str | None = None
    """The standard promise that it breaks; None where obligations name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Why a version broke with the one before it."""

    version: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A file, key by key."""

    contract: str
    prefix: str
    version: str
    requires_level: int | dict[str, int]
    """One level for every backend that the contract has, or one for each of them."""
    refs: list[Reference]
    depends_on: list[str] = field(default_factory=list)
    numerics: Numerics
    equations: dict[str, Equation]
    subjects: dict[str, Subject]
    domains: dict[str, Domain]
    standard: dict[str, dict[str, str]] = field(default_factory=dict)
    """By subject: promises that any operator can make, each with its domain; `contracts.standard` writes them out."""
    obligations: dict[str, Obligation] = field(default_factory=dict)
    tests: dict[str, Test] = field(default_factory=dict)
    mutants: dict[str, Mutant] = field(default_factory=dict)
    proofs: dict[str, ProofEntry] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract(Document):
    """One file, loaded and checked."""

    path: Path

    @property
    def backends(self) -> list[str]:
        """The backends that any of its subjects has."""
        return [each for each in BACKENDS if any(each in subject.orders for subject in self.subjects.values())]

    def required(self, backend: str) -> int:
        """The level it asks for on a backend; 0 where it has nothing on that backend."""
        if backend not in self.backends:
            return 0
        return self.requires_level if isinstance(self.requires_level, int) else self.requires_level[backend]

    def proofs_of(self, identifier: str, backend: str) -> dict[str, ProofEntry]:
        """Every proof declared for an obligation on a backend, or on all of several that it compares."""
        wanted = set(backend.split(", "))
        return {
            name: entry
            for name, entry in self.proofs.items()
            if identifier in entry.obligations and wanted <= set(entry.backends)
        }


_EXAMPLE = re.compile(r"(?P<shape>[0-9]+(?:x[0-9]+)*) (?P<recipe>\w+) (?P<format>\w+) seed (?P<seed>[0-9]+)", re.ASCII)
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)", re.ASCII)
_CHOICE = re.compile(r"[0-9]+(?:, [0-9]+)*", re.ASCII)
LARGEST_SIZE: Final = 1 << 20


def example_of(text: str) -> tuple[tuple[int, ...], str, str, int]:
    """(shape, recipe, format, seed) of an example as written."""
    match = _EXAMPLE.fullmatch(text)
    if match is None or len(text) > 200:
        raise ValueError(f"{text[:60]!r} is not an example; expected something like '33x257 normal float32 seed 1'")
    shape = tuple(int(size) for size in match["shape"].split("x"))
    return shape, match["recipe"], match["format"], int(match["seed"])


def sizes_of(text: str) -> Sequence[int]:
    """The sizes that "1..40" or "16, 32, 64" stands for; a range stays one, however far it goes."""
    span = _RANGE.fullmatch(text) if len(text) <= 200 else None
    if span is not None and 1 <= int(span[1]) <= int(span[2]) <= LARGEST_SIZE:
        return range(int(span[1]), int(span[2]) + 1)
    if span is None and len(text) <= 200 and _CHOICE.fullmatch(text) is not None:
        sizes = [int(size) for size in text.split(", ")]
        if min(sizes) >= 1 and max(sizes) <= LARGEST_SIZE:
            return sizes
    raise ValueError(
        f"{text[:60]!r} is not a size; expected something like '1..40' or '16, 32', between 1 and {LARGEST_SIZE}"
    )
