"""What z3 says of a launch: whether an access can leave its buffer, and whether a shorter buffer would be noticed.

Knows no kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from samebits.contracts.symbolic import solver_module
from samebits.records.report import UnjudgedError
from samebits.train.contracts.launch_indices.machine import Access, Machine, ways

# A query takes a fraction of a second of a core's time; a busy machine may give it a tenth of one.
TIMEOUT_SECONDS: Final = 120
Launch = Callable[[Machine], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """Of one kernel."""

    accesses: int
    """Different ones: by address, mask and what is known."""
    outside: tuple[str, ...]
    """Those with a counterexample, each with the sizes of one."""
    buffers: int
    untouched: tuple[str, ...]
    """Buffers that could be one element shorter."""


@dataclass(slots=True)
class Cone:
    """What of all that is known can matter to a term: what shares an unknown with it, and then with that, and so on.

    Sizes have names and stand in nearly everything: what is about them alone counts where it is about no other."""

    z3: Any
    named: dict[int, frozenset[str]] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def variables(self, term: Any) -> frozenset[str]:
        number = term.get_id()
        if number not in self.named:
            self.kept.append(term)
            if term.num_args():
                found = frozenset().union(*map(self.variables, term.children()))
            else:
                found = frozenset([str(term)] if term.decl().kind() == self.z3.Z3_OP_UNINTERPRETED else [])
            self.named[number] = found
        return self.named[number]

    def of(self, term: Any, known: Sequence[Any]) -> list[Any]:
        reached, inside = set(self.variables(term)), dict[int, Any]()
        grown = True
        while grown:
            grown = False
            for place, each in enumerate(known):
                names = self.variables(each)
                unknowns = {name for name in names if name.startswith("unknown_")}
                if place not in inside and (unknowns & reached or (not unknowns and names <= reached)):
                    inside[place], grown = each, True
                    reached |= names
        return [inside[place] for place in sorted(inside)]


def _wrong(z3: Any, access: Access) -> Any:
    """That the access goes wrong."""
    return z3.Not(z3.And(access.sound, z3.Implies(access.mask, access.inside)))


def _text(terms: Sequence[Any]) -> str:
    """Terms as text, unknowns numbered as they come."""
    numbers: dict[str, str] = {}
    text = " ".join(str(each.sexpr()) for each in terms)
    return re.sub(r"unknown_\d+", lambda found: numbers.setdefault(found[0], f"unknown_{len(numbers)}"), text)


def _asked(z3: Any, terms: Sequence[Any]) -> tuple[str, str]:
    """(answer, the sizes of a counterexample)."""
    solver = z3.Solver(ctx=terms[0].ctx)
    solver.set("timeout", TIMEOUT_SECONDS * 1000)
    solver.add(*terms)
    answer = str(solver.check())
    if answer == "unknown":
        raise UnjudgedError(f"z3 answered unknown ({solver.reason_unknown()}); that proves nothing")
    if answer == "unsat":
        return answer, ""
    model = solver.model()
    named = sorted((str(each), str(model[each])) for each in model if not str(each).startswith("unknown_"))
    return answer, ", ".join(f"{name} = {value}" for name, value in named)


@cache
def shown(launch: Launch) -> Shown:
    """Every access of a launch, on every way through its kernel, decided for all sizes."""
    z3 = solver_module()
    context = z3.Context()
    cone = Cone(z3)
    accesses: dict[str, Access] = {}
    ends: dict[str, list[Access]] = {}
    for access in (each for way in ways(launch, context) for each in way):
        text = _text([_wrong(z3, access), *cone.of(_wrong(z3, access), access.known)])
        if text not in accesses:
            accesses[text] = access
        if access.buffer:
            ends.setdefault(access.buffer, []).append(access)
    outside = [said for each in accesses.values() if (said := _counterexample(z3, cone, each))]
    untouched = [name for name, some in ends.items() if not any(_reaches_the_end(z3, each) for each in some)]
    return Shown(accesses=len(accesses), outside=tuple(outside), buffers=len(ends), untouched=tuple(untouched))


def _counterexample(z3: Any, cone: Cone, access: Access) -> str:
    """In one line, or "": what is known of little is asked first, for that is quick and enough where there is none."""
    wrong = _wrong(z3, access)
    if _asked(z3, [wrong, *cone.of(wrong, access.known)])[0] == "unsat":
        return ""
    answer, sizes = _asked(z3, [wrong, *access.known])
    return f"{access.where}, {access.buffer or 'no buffer'}: {sizes}" if answer == "sat" else ""


def _reaches_the_end(z3: Any, access: Access) -> bool:
    """Planted fault: the buffer is one element shorter, and z3 must find the access that leaves it."""
    return _asked(z3, [*access.known, access.mask, access.last])[0] == "sat"
