"""Certificates that a polynomial of sizes and digits is not negative: P = (A - k) * v + R, where none of them is.

A is what v is multiplied by in P, k is 0 or 1, and A - k and R are shown in the same way, until nothing is multiplied:
that is a linear question, which z3 answers for all numbers. The identity holds by how A and R are made, so that a wrong
choice of v costs a certificate and never makes a wrong one. Knows no kernel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from samebits.train.contracts.attention_indices.polynomials import (
    Naming,
    Polynomial,
    added,
    cofactor,
    multiplied,
    without,
)

# A linear question takes a hundredth of a second of a core's time; a busy machine may give it a tenth of one.
TIMEOUT_SECONDS: Final = 60
# An address has up to five factors: a split, a token, a head, and an element of it.
DEPTH: Final = 6
SMALL: Final = 2**30
"""What counts as a bound of numbers of so many bits."""
BOUNDS: Final = (2**7, 2**8, 2**11, 2**15, 2**20, 2**30, 2**31)
"""Those that are tried."""
UNBOUNDED: Final = 2**100
_ONE: Final[Polynomial] = {(): 1}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known where an access stands."""

    terms: tuple[Any, ...]
    numbers: frozenset[int]
    quotients: Mapping[str, tuple[int, Polynomial]]
    """Of division by numbers: name, divisor, and what divisor * name is."""


@dataclass(slots=True)
class Certifier:
    """Of one launch."""

    z3: Any
    context: Any
    naming: Naming = field(init=False)
    names: dict[int, frozenset[str]] = field(default_factory=dict)
    written: dict[int, str] = field(default_factory=dict)
    signs: dict[tuple[str, ...], Any] = field(default_factory=dict)
    multiplied: dict[int, frozenset[tuple[str, ...]]] = field(default_factory=dict)
    answers: dict[str, bool] = field(default_factory=dict)
    shown: dict[tuple[int, int], list[frozenset[int]]] = field(default_factory=dict)
    """Of what was shown under a mask: out of which facts."""

    yes: Any = field(init=False)
    """A mask that lets everything through."""

    def __post_init__(self) -> None:
        self.naming = Naming(self.z3, self.context)
        self.yes = self.z3.BoolVal(True, self.context)

    def facts(self, known: Iterable[Any], quotients: Iterable[tuple[Any, Any, Any, Any]]) -> Facts:
        z3, naming = self.z3, self.naming
        terms = tuple(naming.formula(each) for each in known)
        found = {
            str(quotient): (divisor.as_long(), added(naming.polynomial(number), naming.polynomial(rest), -1))
            for number, divisor, quotient, rest in quotients
            if z3.is_int_value(divisor) and divisor.as_long() > 1 and quotient.num_args() == 0
        }
        return Facts(terms, frozenset(each.get_id() for each in terms), found)

    def follows(self, least: Polynomial, mask: Any, known: Facts) -> bool:
        """Whether the polynomial is at least 0 wherever the mask holds."""
        for name, (divisor, whole) in known.quotients.items():
            least = without(least, name, divisor, whole)
        goal, mask = self.naming.linear(least) >= 0, self.naming.formula(mask)
        self.naming.kept.append(goal)
        key = goal.get_id(), mask.get_id()
        always = self.shown.get((goal.get_id(), self.yes.get_id()), ())
        if any(each <= known.numbers for each in (*self.shown.get(key, ()), *always)):
            return True
        for rounds, depth in ((1, 0), (len(known.terms), DEPTH)):
            near = self._cone([goal, mask], known.terms, rounds)
            text = f"{depth} {self._text([goal, mask, *near])}"
            if text not in self.answers:
                self.answers[text] = Question(self, [*near, mask]).positive(least, depth)
            if self.answers[text]:
                self.shown.setdefault(key, []).append(frozenset(each.get_id() for each in near) & known.numbers)
                return True
        return False

    def variables(self, term: Any) -> frozenset[str]:
        """Names of a linear formula, those in products too."""
        number = term.get_id()
        if number not in self.names:
            self.naming.kept.append(term)
            if term.num_args():
                self.names[number] = frozenset().union(*map(self.variables, term.children()))
            else:
                unknown = term.decl().kind() == self.z3.Z3_OP_UNINTERPRETED
                self.names[number] = frozenset(str(term).split("*")) if unknown else frozenset()
        return self.names[number]

    def _text(self, terms: Sequence[Any]) -> str:
        """Terms as text, unknowns and strides numbered as they come."""
        numbers: dict[str, str] = {}
        text = " ".join(map(self._written, terms))
        return re.sub(
            r"unknown_\w*\d|stride_[a-z]+", lambda found: numbers.setdefault(found[0], f"unknown_{len(numbers)}"), text
        )

    def _written(self, term: Any) -> str:
        number = term.get_id()
        if number not in self.written:
            self.naming.kept.append(term)
            self.written[number] = term.sexpr()
        return self.written[number]

    def sign(self, monomial: tuple[str, ...]) -> Any:
        """That a product of what is not negative is not negative."""
        if monomial not in self.signs:
            variable = self.naming.variable
            signs = [variable((name,)) >= 0 for name in dict.fromkeys(monomial)]
            self.signs[monomial] = self.z3.Implies(self.z3.And(*signs), variable(monomial) >= 0)
        return self.signs[monomial]

    def products(self, term: Any) -> frozenset[tuple[str, ...]]:
        """Products in a linear formula."""
        number = term.get_id()
        if number not in self.multiplied:
            self.naming.kept.append(term)
            if term.num_args():
                self.multiplied[number] = frozenset().union(*map(self.products, term.children()))
            else:
                names = tuple(str(term).split("*"))
                self.multiplied[number] = frozenset([names] if len(names) > 1 else [])
        return self.multiplied[number]

    def _cone(self, terms: Sequence[Any], known: Sequence[Any], rounds: int) -> list[Any]:
        """What of all that is known can matter: what shares an unknown with the terms, in the next round with that, and
        so on; what chosen numbers are; and of what is about sizes alone what is about these."""
        reached = set[str]().union(*map(self.variables, terms))
        left, inside, chosen = list(known), list[Any](), set[str]()
        for _ in range(rounds):
            found = [each for each in left if self._touches(each, reached)]
            names = sorted((reached & self.naming.choices.keys()) - chosen) if rounds > 1 else []
            if not found and not names:
                break
            chosen |= set(names)
            inside += [*(self.naming.choices[name] for name in names), *found]
            taken = {each.get_id() for each in found}
            left = [each for each in left if each.get_id() not in taken]
            reached |= set[str]().union(*map(self.variables, inside))
        return inside

    def _touches(self, term: Any, reached: set[str]) -> bool:
        names = self.variables(term)
        unknown = {name for name in names if name.startswith("unknown_")}
        return bool(unknown & reached or (not unknown and names <= reached))


@dataclass(slots=True)
class Question:
    """What follows of these formulas."""

    certifier: Certifier
    formulas: list[Any]
    solver: Any = None
    known: dict[Any, bool] = field(default_factory=dict)
    factors: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    """By name: what it is multiplied by somewhere."""
    met: set[tuple[str, ...]] = field(default_factory=set)
    most: dict[tuple[str, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        z3 = self.certifier.z3
        self.solver = z3.Solver(ctx=self.certifier.context)
        self.solver.set("timeout", TIMEOUT_SECONDS * 1000)
        self.solver.add(*self.formulas)
        for monomial in sorted(set[tuple[str, ...]]().union(*map(self.certifier.products, self.formulas))):
            self._meet(monomial)

    def _meet(self, monomial: tuple[str, ...]) -> None:
        for place, name in enumerate(monomial):
            self.factors.setdefault(name, set()).add(monomial[:place] + monomial[place + 1 :])
        if monomial not in self.met:
            self.met.add(monomial)
            self.solver.add(self.certifier.sign(monomial))

    def _linear(self, terms: Sequence[Any]) -> bool:
        """Whether they contradict what is known."""
        self.solver.push()
        self.solver.add(*terms)
        answer = self.solver.check()
        self.solver.pop()
        return bool(answer == self.certifier.z3.unsat)

    def positive(self, polynomial: Polynomial, depth: int) -> bool:
        """Whether it is at least 0."""
        key = frozenset(polynomial.items())
        if key not in self.known:
            self.known[key] = False
            for monomial in polynomial:
                if len(monomial) > 1:
                    self._meet(monomial)
            found = self._by_contradiction(polynomial) or self._by_size(polynomial)
            self.known[key] = found or self._by_certificate(polynomial, depth)
        return self.known[key]

    def _by_size(self, polynomial: Polynomial) -> bool:
        """A number that is not below all that is taken from it, each factor as large as it may be."""
        number = polynomial.get((), 0)
        if number < SMALL:
            return False
        names = sorted({name for monomial in polynomial for name in monomial})
        signs = [self._by_contradiction({(name,): 1}) for name in names]
        taken = {monomial: -count for monomial, count in polynomial.items() if monomial and count < 0}
        return all(signs) and sum(count * self._most(monomial) for monomial, count in taken.items()) <= number

    def _most(self, monomial: tuple[str, ...]) -> int:
        """What a number is not above, or a product of numbers that are not negative."""
        if monomial not in self.most:
            variable = self.certifier.naming.variable(monomial)
            own = next((each for each in BOUNDS if self._linear([variable > each])), UNBOUNDED)
            parts = [monomial[:place] for place in range(1, len(monomial))]
            parts += [(monomial[0], each) for each in monomial[2:]]
            products = [self._most(part) * self._most(_without(monomial, part)) for part in parts]
            self.most[monomial] = min([own, *products])
        return self.most[monomial]

    def _by_contradiction(self, polynomial: Polynomial) -> bool:
        """That it is below 0 is added, and that multiplied by what its numbers are multiplied by elsewhere."""
        naming = self.certifier.naming
        below = added(added({}, polynomial, -1), _ONE, -1)
        terms = [naming.linear(below) >= 0]
        own = {monomial for monomial in below if monomial}
        for name, others in sorted(self.factors.items()):
            if own & others:
                product = naming.linear(multiplied(below, {(name,): 1})) >= 0
                terms.append(self.certifier.z3.Implies(naming.variable((name,)) >= 0, product))
        return self._linear(terms)

    def _by_certificate(self, polynomial: Polynomial, depth: int) -> bool:
        names = Counter(name for monomial in polynomial if len(monomial) > 1 for name in set(monomial))
        # The stride that most products share is the likeliest.
        for name, _ in sorted(names.items(), key=lambda each: (-each[1], each[0])) if depth else ():
            digit: Polynomial = cofactor(polynomial, name)
            factor: Polynomial = {(name,): 1}
            for k in (1, 0):
                less = added(digit, _ONE, -k)
                rest = added(polynomial, multiplied(less, factor), -1)
                if not any(less) or not self.positive(factor, 0):
                    continue
                if self.positive(less, depth - 1) and self.positive(rest, depth - 1):
                    return True
        return False


def _without(monomial: tuple[str, ...], part: tuple[str, ...]) -> tuple[str, ...]:
    left = list(monomial)
    for name in part:
        left.remove(name)
    return tuple(left)
