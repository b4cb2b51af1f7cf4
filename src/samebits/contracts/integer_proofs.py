"""Proofs about whole numbers, for all sizes at once: Z3 must find no counterexample, and must find that of every twin.

Knows no kernel. A claim states itself on unknowns (samebits.contracts.symbolic); its twin is the same statement with a
planted fault. Assumptions that contradict each other prove nothing; an answer `unknown`, which a timeout gives too, is
neither a proof nor a refutation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth

# A query takes seconds of a core's time; a busy machine may give it a tenth of one.
TIMEOUT_SECONDS: Final = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """`state` makes unknowns, assumes what it may and returns what must follow; if asked, with the planted fault."""

    name: str
    state: Callable[[Symbols], Truth]
    fault: str
    """What is wrong with the twin."""
    truncating: bool = False
    """Division rounds towards zero, as on the machine; else down, as in Python."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One question for the solver and the answer that is hoped for."""

    name: str
    hoped: str
    solver: Any

    def answer(self) -> str:
        return str(self.solver.check())


def _query(name: str, hoped: str, symbols: Symbols, conclusion: Truth | None, timeout: float) -> Query:
    solver = symbols.z3.Solver(ctx=symbols.context)
    solver.set("timeout", max(1, round(timeout * 1000)))
    solver.add(symbols.assumptions)
    if conclusion is not None:
        solver.add(symbols.z3.Not(symbols.z3.And([conclusion.term, *symbols.must])))
    return Query(name=name, hoped=hoped, solver=solver)


def _ask(claim: Claim, timeout: float) -> tuple[Query, Query, Query]:
    """Can the assumptions be met; is there a counterexample; is there one of the twin."""
    symbols = Symbols(truncating=claim.truncating)
    conclusion = claim.state(symbols)
    twin = Symbols(faulty=True, truncating=claim.truncating)
    planted = claim.state(twin)
    return (
        _query(f"{claim.name}: assumptions", "sat", symbols, None, timeout),
        _query(f"{claim.name}: counterexample", "unsat", symbols, conclusion, timeout),
        _query(f"{claim.name}: twin ({claim.fault})", "sat", twin, planted, timeout),
    )


def _text(asked: Sequence[Query]) -> str:
    return "\n".join(f"; {query.name}; hoped: {query.hoped}\n{query.solver.to_smt2()}" for query in asked)


def queries(claims: Sequence[Claim]) -> str:
    """The SMT-LIB text of every question, in order: what any solver can be asked again."""
    return "\n".join(_text(_ask(claim, TIMEOUT_SECONDS)) for claim in claims)


def prove(claims: Sequence[Claim], *, bound: str, timeout: float = TIMEOUT_SECONDS) -> Proof:
    """Every claim decided, every twin refuted; the witness is the first claim or twin of which the contrary is so."""
    decided = refuted = 0
    witness, undecided, texts = "", "", []
    for claim in claims:
        asked = _ask(claim, timeout)
        texts.append(_text(asked))
        answers = [query.answer() for query in asked]
        decided += answers[:2] == ["sat", "unsat"]
        refuted += answers[2] == "sat"
        for query, answer in zip(asked, answers, strict=True):
            if answer == "unknown":
                undecided = undecided or f"{query.name}: {_said(query, answer)}"
            elif answer != query.hoped:
                witness = witness or f"{query.name}: {_said(query, answer)}"
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return Proof(
        kind="integers",
        bound=bound,
        cases=decided,
        expected=len(claims),
        planted=len(claims),
        caught=refuted,
        witness=witness,
        undecided=undecided,
        digest=digest,
    )


def _said(query: Query, answer: str) -> str:
    """The answer in words; a counterexample with its numbers, those without a name left out."""
    if answer == "unknown":
        return (
            f"z3 answered unknown ({query.solver.reason_unknown()}), {query.hoped} was hoped for; that proves nothing"
        )
    if answer == "unsat":
        what = (
            "the assumptions contradict each other" if query.name.endswith("assumptions") else "the twin holds as well"
        )
        return f"z3 answered unsat, sat was hoped for: {what}"
    model = query.solver.model()
    numbers = sorted((str(each), model[each]) for each in model if not str(each).startswith("unknown_"))
    return "z3 found " + ", ".join(f"{name} = {value}" for name, value in numbers)
