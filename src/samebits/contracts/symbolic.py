"""Whole numbers without values: integer code of schedules and kernels runs on them as it stands and leaves formulas.

Knows no claim and no solver's answer. A number may be given a width; that a result stays within it is then collected,
not assumed. A quotient q and its remainder r of n by b are new unknowns with n = b q + r; b >= 1 is collected too."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any, Final, overload

from samebits.records.packages import MissingPackageError, needed, remedy

# The oldest whose answers were looked at; which one decided a query is written into its receipt.
OLDEST_Z3: Final = (4, 15)


class SolverMissingError(MissingPackageError):
    """Z3 is not here, or too old."""


def solver_module() -> Any:
    what = "level 4 of kind integers"
    try:
        with needed(what):
            z3 = importlib.import_module("z3")
    except MissingPackageError as error:
        raise SolverMissingError(str(error)) from None
    found: str = z3.get_version_string()
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST_Z3:
        oldest = ".".join(map(str, OLDEST_Z3))
        raise SolverMissingError(f"{what}: z3 is {found}; allowed: {oldest} and later; {remedy('z3')}")
    return z3


class Symbols:
    """What one formula is made of: unknowns, assumptions, definitions, and conditions that must hold on the way.

    `faulty` asks for the twin, with its planted fault. `truncating`: division as in C and Triton, not as in Python."""

    def __init__(self, *, faulty: bool = False, truncating: bool = False) -> None:
        self.z3 = solver_module()
        # A context of its own: what was asked before changes neither the text nor the way of the search.
        self.context = self.z3.Context()
        self.faulty, self.truncating = faulty, truncating
        self.assumptions: list[Any] = []
        self.must: list[Any] = []
        self.known: list[tuple[Any, Any, Whole, Whole]] = []
        self.widths: list[Any] = []
        self.unknowns = 0
        self.decisions: list[bool] | None = None
        self.taken: list[Any] = []

    def whole(self, name: str, *, least: Any = None, below: Any = None, bits: int = 0) -> Whole:
        """A number least <= name < below; bits=0 means that no width is watched."""
        number = Whole(self, self.z3.Int(name, self.context), bits)
        if least is not None:
            self.assume(number >= least)
        if below is not None:
            self.assume(number < below)
        return number

    def wholes(self, names: str, *, least: Any = None, below: Any = None, bits: int = 0) -> list[Whole]:
        return [self.whole(name, least=least, below=below, bits=bits) for name in names.split()]

    def unknown(self, *, least: Any = None, below: Any = None, bits: int = 0) -> Whole:
        """A number that needs no name."""
        self.unknowns += 1
        return self.whole(f"unknown_{self.unknowns}", least=least, below=below, bits=bits)

    def assume(self, *conditions: Truth | bool) -> None:
        self.assumptions += [self.plain(condition) for condition in conditions]

    @overload
    def planted(self, right: int, wrong: int) -> int: ...
    @overload
    def planted(self, right: Whole, wrong: Any) -> Whole: ...
    @overload
    def planted(self, right: Any, wrong: Any) -> Any: ...
    def planted(self, right: Any, wrong: Any) -> Any:
        """What the formula says, or what its twin says instead."""
        return wrong if self.faulty else right

    def plain(self, value: Any) -> Any:
        """The solver's own expression."""
        if isinstance(value, bool):
            return self.z3.BoolVal(value, self.context)
        return value.term if isinstance(value, Whole | Truth) else value

    def _term(self, number: Any) -> Any:
        return self.z3.IntVal(number, self.context) if isinstance(number, int) else number.term

    def all_of(self, *conditions: Truth | bool) -> Truth:
        return Truth(self, self.z3.And([self.plain(condition) for condition in conditions]))

    def any_of(self, *conditions: Truth | bool) -> Truth:
        return Truth(self, self.z3.Or([self.plain(condition) for condition in conditions]))

    def implies(self, condition: Truth | bool, consequence: Truth | bool) -> Truth:
        return Truth(self, self.z3.Implies(self.plain(condition), self.plain(consequence)))

    def same(self, left: Truth, right: Truth) -> Truth:
        return Truth(self, left.term == right.term)

    def choose(self, condition: Truth, left: Any, right: Any) -> Whole:
        return Whole(self, self.z3.If(condition.term, self._term(left), self._term(right)), width(left, right))

    def smaller(self, left: Any, right: Any) -> Whole:
        return self.choose(Truth(self, self._term(left) <= self.plain(right)), left, right)

    def larger(self, left: Any, right: Any) -> Whole:
        return self.choose(Truth(self, self._term(left) >= self.plain(right)), left, right)

    def ceiling(self, n: Whole, b: Any) -> Whole:
        """(n + (b - 1)) // b, as the kernels' `cdiv` has it."""
        return self.divide(n + (b - 1), b)[0]

    def fits(self) -> Truth:
        """Every result so far of numbers with a width lies within it."""
        if not self.widths:
            raise ValueError("fits: no number of this formula has a width")
        return Truth(self, self.z3.And(self.widths))

    def knows(self, n: Whole, b: Any, q: Whole, r: Whole) -> None:
        """q and r are quotient and remainder of n by b: that is shown with the conclusion, then used wherever n is
        divided by b. There is one such pair, so nothing is assumed; products of unknowns are hard to divide else."""
        self.must.append(self.z3.And(n.term == self.plain(b) * q.term + r.term, r.term >= 0, r.term < self.plain(b)))
        self.known.append((n.term, self.plain(b), q, r))

    def divide(self, n: Any, b: Any) -> tuple[Whole, Whole]:
        """Quotient and remainder of n by b >= 1."""
        for known_n, known_b, q, r in self.known:
            if self._alike(known_n, self.plain(n)) and self._alike(known_b, self.plain(b)):
                return q, r
        return self._divide(n, b)

    def _alike(self, left: Any, right: Any) -> bool:
        if isinstance(left, int) or isinstance(right, int):
            return bool(left is right or (isinstance(left, int) and isinstance(right, int) and left == right))
        return bool(left.eq(right))

    def _divide(self, n: Any, b: Any) -> tuple[Whole, Whole]:
        bits, z3 = width(n, b), self.z3
        q, r = self.unknown(bits=bits), self.unknown(bits=bits)
        n, b = self.plain(n), self.plain(b)
        below = z3.And(r.term >= 0, r.term < b)
        if self.truncating:
            below = z3.If(n >= 0, below, z3.And(-b < r.term, r.term <= 0))
        defined = z3.And(n == b * q.term + r.term, below)
        if isinstance(b, int):
            if b < 1:
                raise ValueError(f"divide: the divisor is {b}; allowed: 1 or more")
        elif self.faulty:
            defined = z3.And(b >= 1, defined)
        else:
            defined = z3.Implies(b >= 1, defined)
            self.must.append(b >= 1)
        self.assumptions.append(defined)
        return q, r

    def paths(self, function: Callable[[], Any]) -> Iterator[tuple[Truth, Any]]:
        """Every way through a function that branches on unknowns: (the condition of the way, its result)."""
        waiting: list[list[bool]] = [[]]
        while waiting:
            self.decisions, self.taken = waiting.pop(), []
            known = len(self.decisions)
            result = function()
            decided, self.decisions = self.decisions, None
            yield self.all_of(True, *[Truth(self, each) for each in self.taken]), result
            waiting += [[*decided[:place], not decided[place]] for place in range(known, len(decided))]

    def decide(self, term: Any) -> bool:
        if self.decisions is None:
            raise ValueError(f"a branch on {term}; allowed within Symbols.paths only")
        place = len(self.taken)
        if place == len(self.decisions):
            self.decisions.append(True)
        decision = self.decisions[place]
        self.taken.append(term if decision else self.z3.Not(term))
        return decision

    def source(self, function: Any, **language: Any) -> Callable[..., Any]:
        """A kernel's own Python source, to be called with unknowns. `language` adds to what it finds in `tl`."""
        plain = getattr(function, "fn", function)
        tl = SimpleNamespace(**{**self.language(), **language})
        found = {**plain.__globals__, "tl": tl, "min": self.smaller, "max": self.larger}
        return FunctionType(plain.__code__, found, plain.__name__, plain.__defaults__)

    def language(self) -> dict[str, Any]:
        """As much of `triton.language` as addresses need; one unknown lane stands for all lanes of a tensor."""
        return {
            "int64": 64,
            "int32": 32,
            "cdiv": self.ceiling,
            "where": self.choose,
            "minimum": self.smaller,
            "maximum": self.larger,
            "broadcast_to": lambda value, shape: value,
            "arange": lambda first, stop: self.unknown(least=first, below=stop, bits=32),
        }


def width(*values: Any) -> int:
    """The width of a result: that of its widest operand; a literal takes the other's."""
    return max((value.bits for value in values if isinstance(value, Whole)), default=0)


class Truth:
    """A condition on unknowns; like every tensor here, the same along a new axis."""

    def __init__(self, symbols: Symbols, term: Any) -> None:
        self.symbols, self.term = symbols, term

    def __getitem__(self, axes: Any) -> Truth:
        return self

    def __and__(self, other: Truth | bool) -> Truth:
        return self.symbols.all_of(self, other)

    __rand__ = __and__

    def __or__(self, other: Truth | bool) -> Truth:
        return self.symbols.any_of(self, other)

    def __invert__(self) -> Truth:
        return Truth(self.symbols, self.symbols.z3.Not(self.term))

    def __bool__(self) -> bool:
        return self.symbols.decide(self.term)


class Whole:
    """A whole number; one lane of a tensor of them."""

    def __init__(self, symbols: Symbols, term: Any, bits: int = 0) -> None:
        self.symbols, self.term, self.bits = symbols, term, bits

    shape = (1, 1)

    def __getitem__(self, axes: Any) -> Whole:
        return self

    def to(self, bits: int) -> Whole:
        """Widened or narrowed; narrowed it must fit."""
        return self._of(self.term, bits)

    def _of(self, term: Any, bits: int) -> Whole:
        if bits:
            self.symbols.widths.append(self.symbols.z3.And(-(2 ** (bits - 1)) <= term, term < 2 ** (bits - 1)))
        return Whole(self.symbols, term, bits)

    def _arithmetic(self, other: Any, operation: Callable[[Any, Any], Any], *, turned: bool = False) -> Whole:
        left, right = (other, self) if turned else (self, other)
        return self._of(operation(self.symbols.plain(left), self.symbols.plain(right)), width(left, right))

    def _compared(self, other: Any, operation: Callable[[Any, Any], Any]) -> Truth:
        return Truth(self.symbols, operation(self.term, self.symbols.plain(other)))

    def __add__(self, other: Any) -> Whole:
        return self._arithmetic(other, operator.add)

    def __radd__(self, other: Any) -> Whole:
        return self._arithmetic(other, operator.add, turned=True)

    def __sub__(self, other: Any) -> Whole:
        return self._arithmetic(other, operator.sub)

    def __rsub__(self, other: Any) -> Whole:
        return self._arithmetic(other, operator.sub, turned=True)

    def __mul__(self, other: Any) -> Whole:
        return self._arithmetic(other, operator.mul)

    def __rmul__(self, other: Any) -> Whole:
        return self._arithmetic(other, operator.mul, turned=True)

    def __neg__(self) -> Whole:
        return self._of(-self.term, self.bits)

    def __floordiv__(self, other: Any) -> Whole:
        return self.symbols.divide(self, other)[0]

    def __rfloordiv__(self, other: Any) -> Whole:
        return self.symbols.divide(other, self)[0]

    def __mod__(self, other: Any) -> Whole:
        return self.symbols.divide(self, other)[1]

    def __rmod__(self, other: Any) -> Whole:
        return self.symbols.divide(other, self)[1]

    def __lt__(self, other: Any) -> Truth:
        return self._compared(other, operator.lt)

    def __le__(self, other: Any) -> Truth:
        return self._compared(other, operator.le)

    def __gt__(self, other: Any) -> Truth:
        return self._compared(other, operator.gt)

    def __ge__(self, other: Any) -> Truth:
        return self._compared(other, operator.ge)

    def __eq__(self, other: Any) -> Truth:  # type: ignore[override]
        return self._compared(other, operator.eq)

    def __ne__(self, other: Any) -> Truth:  # type: ignore[override]
        return self._compared(other, operator.ne)

    def __bool__(self) -> bool:
        return self.symbols.decide(self.term != 0)

    __hash__ = None  # type: ignore[assignment]
