"""What a proof hands over: what was shown, for which bound, how many cases that took, and whether its twins failed.

Knows no prover. A contract names a function without arguments that returns one of these, or a kind that needs none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# What each kind shows, and what it trusts, in the words of docs/contracts.md.
KINDS: Final = ("enumeration", "integers", "order", "dag", "artifact")
DERIVED: Final = ("dag", "artifact")
"""Kinds that name no function: the calls that a component lists in `triton_cases.py` are all that is needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """One proof, carried out. Only `proved` counts: all of a finite set, or every query, and each twin refuted."""

    kind: str
    bound: str
    """What it was shown for, in words with numbers."""
    cases: int
    """Members enumerated, queries decided, trees compared, artifacts hashed."""
    expected: int
    """How many there are, computed apart from the loop that counts them."""
    planted: int
    """Twins: the same proof of something false."""
    caught: int
    """Twins that were refuted."""
    witness: str = ""
    """The first thing that does not hold; empty where everything does."""
    undecided: str = ""
    """Why neither answer was found, where that is so: a solver gave up. Neither a proof nor a refutation."""
    digest: str = ""
    """SHA-256 of what was decided: the queries' text, the trees, the artifacts."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is not a kind of proof; known: {', '.join(KINDS)}")

    @property
    def proved(self) -> bool:
        complete = self.cases == self.expected >= 1
        return complete and not self.witness and not self.undecided and self.caught == self.planted >= 1

    def __str__(self) -> str:
        if self.proved:
            return f"proved for {self.bound}: {self.cases} of {self.expected}, {self.caught} twins refuted"
        if self.witness:
            return f"does not hold: {self.witness}"
        if self.undecided:
            return f"could not be judged: {self.undecided}"
        return f"not proved: {self.cases} of {self.expected} cases, {self.caught} of {self.planted} twins refuted"
