"""The machine of `launch_indices`, which takes the same way wherever the same is asked, and names one size for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Flag, Number, needs_of


@dataclass(kw_only=True)
class OneWay(Machine):
    """A condition that was decided on the way is not decided again: the other way would be none."""

    decided: dict[int, bool] = field(default_factory=dict)
    limits: list[tuple[Any, Any, Any]] = field(default_factory=list)
    """(divisor, what quotients by it are below, what they are multiplied by): shown of each, and known from then on."""
    factors: list[tuple[Any, Any]] = field(default_factory=list)
    """(divisor, what rests are multiplied by): likewise, that they are below it still."""

    def decide(self, term: Any = None) -> bool:
        if term is None:
            return super().decide()
        simple, number = self.z3.simplify(term), self.kept(term).get_id()
        if self.z3.is_true(simple) or self.z3.is_false(simple):
            return bool(self.z3.is_true(simple))
        if number in self.decided:
            # It may have been decided within a loop, of which the path no longer knows.
            self.path.append(term if self.decided[number] else self.z3.Not(term))
        else:
            self.decided[number] = super().decide(term)
        return self.decided[number]

    def divided(self, n: Any, b: Any) -> tuple[Any, Any]:
        """By 1 a number stays what it is, and so does what is known of it; a product by its factor is the other one."""
        if isinstance(b, int) and b == 1:
            return n, 0
        if isinstance(n, Number) and isinstance(b, Number) and n.term.decl().kind() == self.z3.Z3_OP_MUL:
            parts = n.term.children()
            for factor, other in (parts, reversed(parts)) if len(parts) == 2 else ():
                if factor.eq(b.term):
                    positive = self.kept(b.term >= 1)
                    needs = {**needs_of(n, b), positive.get_id(): positive}
                    return Number(self, other, n.bits, needs), 0
        quotient, rest = super().divided(n, b)
        if isinstance(quotient, Number):
            self._know(self.term(n), self.term(b), quotient, rest)
        return quotient, rest

    def _know(self, number: Any, divisor: Any, quotient: Number, rest: Number) -> None:
        """What is so of every quotient, and what is so of this one once it is shown."""
        z3 = self.z3
        up, down = (
            z3.And(quotient.term >= 0, quotient.term <= number),
            z3.And(quotient.term <= 0, quotient.term >= number),
        )
        self.facts.append(z3.Implies(z3.And(number >= 0, divisor >= 1), up))
        self.facts.append(z3.Implies(z3.And(number <= 0, divisor >= 1), down))
        for by, limit, factor in self.limits:
            if by.eq(divisor):
                self._find(quotient < limit)
                self._find((limit - 1 - quotient) * factor >= 0)
        for by, factor in self.factors:
            if by.eq(divisor):
                self._find((Number(self, divisor) - 1 - rest) * factor >= 0)

    def _find(self, flag: Flag) -> None:
        self.must(flag)
        self.path.append(flag.term)


def ways(launch: Callable[[OneWay], None], context: Any) -> Iterator[OneWay]:
    """Every way through a launch and its kernel."""
    waiting: list[list[bool]] = [[]]
    while waiting:
        machine = OneWay(decisions=waiting.pop(), context=context)
        known = len(machine.decisions)
        launch(machine)
        yield machine
        decided = machine.decisions
        waiting += [[*decided[:place], not decided[place]] for place in range(known, len(decided))]
