"""Terms of whole numbers expanded into polynomials, and formulas in which every product is one unknown of its own.

What follows of the unknowns follows of the products. Knows no kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Monomial = tuple[str, ...]
"""Names in order, each as often as it is multiplied; () is the number 1."""
Polynomial = dict[Monomial, int]
"""How often each comes; none comes 0 times."""


def added(left: Polynomial, right: Polynomial, times: int = 1) -> Polynomial:
    """left + times * right."""
    found = dict(left)
    for monomial, count in right.items():
        found[monomial] = found.get(monomial, 0) + times * count
    return {monomial: count for monomial, count in found.items() if count}


def multiplied(left: Polynomial, right: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for one, count in left.items():
        for other, times in right.items():
            monomial = tuple(sorted((*one, *other)))
            found[monomial] = found.get(monomial, 0) + count * times
    return {monomial: count for monomial, count in found.items() if count}


def cofactor(polynomial: Polynomial, name: str) -> Polynomial:
    """What is multiplied by the name, once taken out of every product that has it."""
    found: Polynomial = {}
    for monomial, count in polynomial.items():
        if name in monomial:
            place = monomial.index(name)
            found[monomial[:place] + monomial[place + 1 :]] = count
    return found


def without(polynomial: Polynomial, name: str, divisor: int, whole: Polynomial) -> Polynomial:
    """With `whole` in the place of divisor * name, wherever the name comes so often."""
    found = polynomial
    for monomial, count in polynomial.items():
        if name in monomial and count % divisor == 0:
            place = monomial.index(name)
            rest: Polynomial = {monomial[:place] + monomial[place + 1 :]: count // divisor}
            found = added(added(found, {monomial: count}, -1), multiplied(rest, whole))
    return found


@dataclass(slots=True)
class Naming:
    """From terms to polynomials and back to linear terms, in one context of z3."""

    z3: Any
    context: Any
    expanded: dict[int, Polynomial] = field(default_factory=dict)
    flat: dict[int, Any] = field(default_factory=dict)
    made: dict[frozenset[tuple[Monomial, int]], Any] = field(default_factory=dict)
    choices: dict[str, Any] = field(default_factory=dict)
    """By the name of a number that a condition chooses: that it is what is chosen."""
    kept: list[Any] = field(default_factory=list)
    """A term's number is its own only while the term is alive."""

    def variable(self, monomial: Monomial) -> Any:
        return self.z3.Int("*".join(monomial), self.context)

    def linear(self, polynomial: Polynomial) -> Any:
        key = frozenset(polynomial.items())
        if key not in self.made:
            self.made[key] = self._made(polynomial)
        return self.made[key]

    def _made(self, polynomial: Polynomial) -> Any:
        z3 = self.z3
        terms = [
            z3.IntVal(count, self.context) * self.variable(monomial) if monomial else z3.IntVal(count, self.context)
            for monomial, count in sorted(polynomial.items())
        ]
        return z3.Sum(terms) if len(terms) > 1 else terms[0] if terms else z3.IntVal(0, self.context)

    def polynomial(self, term: Any) -> Polynomial:
        number = term.get_id()
        if number not in self.expanded:
            self.kept.append(term)
            self.expanded[number] = self._expand(term)
        return self.expanded[number]

    def _expand(self, term: Any) -> Polynomial:
        z3, kind = self.z3, term.decl().kind()
        if z3.is_int_value(term):
            return {(): term.as_long()} if term.as_long() else {}
        if kind == z3.Z3_OP_UNINTERPRETED:
            return {(str(term),): 1}
        if kind == z3.Z3_OP_ITE:
            return self._choose(term)
        parts = [self.polynomial(each) for each in term.children()]
        if kind == z3.Z3_OP_UMINUS:
            return added({}, parts[0], -1)
        found = parts[0]
        for each in parts[1:]:
            if kind == z3.Z3_OP_MUL:
                found = multiplied(found, each)
            elif kind in (z3.Z3_OP_ADD, z3.Z3_OP_SUB):
                found = added(found, each, 1 if kind == z3.Z3_OP_ADD else -1)
            else:
                raise ValueError(f"no polynomial: {term.decl().name()}")
        return found

    def _choose(self, term: Any) -> Polynomial:
        """An unknown of its own, and what it is: a choice is not expanded into the products that it is part of."""
        z3, (condition, yes, no) = self.z3, term.children()
        name = f"unknown_chosen_{term.get_id()}"
        chosen, either = self.variable((name,)), self.formula(condition)
        is_yes, is_no = (chosen == self.linear(self.polynomial(each)) for each in (yes, no))
        self.choices[name] = z3.And(z3.Implies(either, is_yes), z3.Implies(z3.Not(either), is_no))
        return {(name,): 1}

    def formula(self, term: Any) -> Any:
        """The same formula over linear terms."""
        number = term.get_id()
        if number not in self.flat:
            self.kept.append(term)
            self.flat[number] = self._flatten(term)
        return self.flat[number]

    def _flatten(self, term: Any) -> Any:
        z3, kind = self.z3, term.decl().kind()
        if kind in (z3.Z3_OP_TRUE, z3.Z3_OP_FALSE, z3.Z3_OP_UNINTERPRETED):
            return term
        parts = term.children()
        if kind == z3.Z3_OP_DISTINCT or (kind == z3.Z3_OP_EQ and not z3.is_bool(parts[0])):
            equal = self.linear(self._difference(parts)) == 0
            return equal if kind == z3.Z3_OP_EQ else z3.Not(equal)
        if z3.is_bool(parts[0]):
            return term.decl()(*map(self.formula, parts))
        return self.linear(self.least(term)) >= 0

    def least(self, comparison: Any) -> Polynomial:
        """What is at least 0 where the comparison holds, and nowhere else."""
        z3, difference = self.z3, self._difference(comparison.children())
        one: Polynomial = {(): 1}
        turned = added({}, difference, -1)
        found: Polynomial = {
            z3.Z3_OP_GE: difference,
            z3.Z3_OP_GT: added(difference, one, -1),
            z3.Z3_OP_LE: turned,
            z3.Z3_OP_LT: added(turned, one, -1),
        }[comparison.decl().kind()]
        return found

    def _difference(self, parts: Any) -> Polynomial:
        left, right = map(self.polynomial, parts)
        return added(left, right, -1)
