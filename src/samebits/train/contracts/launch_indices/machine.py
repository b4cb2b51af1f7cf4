"""Runs a kernel's own source on numbers without values, along every way through it, and keeps each access to memory.

An access is an address, a mask, and all that is known on the way to it. What descriptors load and store is kept inside
by the hardware, and no access here. Knows no kernel."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

from samebits.contracts.symbolic import solver_module
from samebits.train.contracts.launch_indices.source import MACHINE, code_of
from samebits.train.contracts.launch_indices.values import Address, Anything, Buffer, Flag, Needs, Number, needs_of

SIZE_LIMIT = 2**31 - 2**12
"""Of one axis: a counter passes its end by up to one step before a loop stops."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Access:
    """One load or store: where it stands, and what z3 must find no counterexample to."""

    where: str
    buffer: str
    known: tuple[Any, ...]
    """All that is so when the access is reached."""
    mask: Any
    inside: Any
    """The address is one of the buffer, nothing overflowed."""
    sound: Any
    """Nothing overflowed on the way to the mask."""
    last: Any
    """The address is the last of the buffer."""


@dataclass(slots=True)
class Loop:
    """Any one turn of a loop."""

    value: Any
    turn: Number
    kept: int
    """How much was known before."""


@dataclass(kw_only=True)
class Machine:
    """One way through one kernel. `decisions` says at each fork which way it is; the rest is found on the way."""

    decisions: list[bool]
    replaced: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Device functions in the place of others, which are named by their module's last name and their own."""
    summaries: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """What is known of device functions that are not looked into, by the same names: called with the machine first."""
    changed: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """What becomes of arguments, or of the program, before they are handed over: planted faults."""
    context: Any
    """Of z3: whatever a run makes is in one of its own, for others may be at work in z3's own."""
    z3: Any = field(default_factory=solver_module)
    accesses: list[Access] = field(default_factory=list)
    path: list[Any] = field(default_factory=list)
    facts: list[Any] = field(default_factory=list)
    """Of sizes, lanes and quotients: so on every way."""
    taken: int = 0
    unknowns: int = 0
    program: Any = None
    quotients: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)
    terms: list[Any] = field(default_factory=list)

    # What numbers ask.

    def kept(self, term: Any) -> Any:
        """A term's number is its own only while the term is alive."""
        self.terms.append(term)
        return term

    def term(self, value: Any) -> Any:
        return value.term if isinstance(value, Number) else self.z3.IntVal(int(value), self.context)

    def flag_term(self, value: Any) -> Any:
        return value.term if isinstance(value, Flag) else self.z3.BoolVal(bool(value), self.context)

    def unknown(self, least: Any = None, below: Any = None, bits: int = 32, name: str = "") -> Number:
        self.unknowns += 1
        found = Number(self, self.z3.Int(name or f"unknown_{self.unknowns}", self.context), bits)
        self.assume(*([found >= least] if least is not None else []), *([found < below] if below is not None else []))
        return found

    def unknown_flag(self) -> Flag:
        self.unknowns += 1
        return Flag(self, self.z3.Bool(f"unknown_{self.unknowns}", self.context), {})

    def assume(self, *flags: Flag) -> None:
        self.facts += [each.term for each in flags]

    def require(self, needs: Needs) -> None:
        """A condition that decides a way must be what it says."""
        if needs:
            self._must("a condition", *needs.values())

    def must(self, flag: Flag) -> None:
        """What a summary rests on."""
        self._must("a summary", flag.term, *flag.needs.values())

    def format(self, name: str) -> Any:
        from samebits.train.contracts.launch_indices.language import Language

        return getattr(Language(self), name)

    def decide(self, term: Any = None) -> bool:
        """Both ways at a fork; without a term, of a launch rather than of a kernel."""
        if self.taken == len(self.decisions):
            self.decisions.append(True)
        decision = self.decisions[self.taken]
        self.taken += 1
        if term is not None:
            self.path.append(term if decision else self.z3.Not(term))
        return decision

    def divided(self, n: Any, b: Any) -> tuple[Any, Any]:
        """Quotient and remainder as the device has them: rounded towards zero."""
        if isinstance(n, Anything) or isinstance(b, Anything):
            return Anything(self), Anything(self)
        z3, numerator, divisor = self.z3, self.term(n), self.term(b)
        bits = max(getattr(each, "bits", 0) for each in (n, b))
        needs = needs_of(n, b)
        positive = self.kept(divisor >= 1)
        needs[positive.get_id()] = positive
        for known, by, q, r in self.quotients:
            if known.eq(numerator) and by.eq(divisor):
                return Number(self, q, bits, dict(needs)), Number(self, r, bits, dict(needs))
        q, r = self.unknown(bits=bits).term, self.unknown(bits=bits).term
        rest = z3.If(numerator >= 0, z3.And(r >= 0, r < divisor), z3.And(-divisor < r, r <= 0))
        self.facts.append(z3.Implies(positive, z3.And(numerator == divisor * q + r, rest)))
        self.quotients.append((numerator, divisor, q, r))
        return Number(self, q, bits, dict(needs)), Number(self, r, bits, dict(needs))

    def joined(self, outer: Any, size: Any, inner: Any) -> Number:
        """outer * size + inner, 0 <= inner < size, whose quotient and remainder by `size` are these: that is shown."""
        terms = [self.term(each) for each in (outer * size + inner, size, outer, inner)]
        found = Number(self, terms[0], 32)
        self.assume(found < 2**31)
        self._must("a quotient", terms[3] >= 0, terms[3] < terms[1])
        self.quotients.append((terms[0], terms[1], terms[2], terms[3]))
        return found

    # What launches ask.

    def sizes(self, names: str, *, below: Any = SIZE_LIMIT, bits: int = 32) -> list[Number]:
        """Axes of at least one."""
        return [self.unknown(1, below, bits, name) for name in names.split()]

    def numbers(self, names: str, *, below: Any = 2**11) -> list[Number]:
        """Launch numbers, of at least one, known when the kernel is compiled."""
        return [self.unknown(1, below, 0, name) for name in names.split()]

    def either(self) -> bool:
        return self.decide()

    def one_of(self, *ways: Any) -> Any:
        return ways[0] if len(ways) == 1 or self.decide() else self.one_of(*ways[1:])

    def cdiv(self, n: Any, b: Any) -> Any:
        return (n + (b - 1)) // b

    def call(self, kernel: Any, *, program: Number, **arguments: Any) -> None:
        """The kernel in one program, whichever it is."""
        handed = {"program": program, **arguments}
        handed |= {name: change(handed[name]) for name, change in self.changed.items()}
        self.program = handed.pop("program")
        given = {name: Address(each, 0) if isinstance(each, Buffer) else each for name, each in handed.items()}
        self.function(kernel)(**given)

    # What the rewritten source asks.

    def function(self, found: Any) -> Callable[..., Any]:
        """A device function from its source, with what it names."""
        from samebits.train.contracts.launch_indices.language import Language, spare

        plain = getattr(found, "fn", found)
        name = f"{plain.__module__.rpartition('.')[2]}.{plain.__name__}"
        if name in self.summaries:
            return partial(self.summaries[name], self)
        plain = self.replaced.get(name, plain)
        names = plain.__globals__
        scope: dict[str, Any] = {}
        for name in plain.__code__.co_names:
            each = names.get(name)
            if hasattr(each, "fn") and hasattr(each, "arg_names"):
                scope[name] = spare(self, each) or _Late(self, each)
            elif name in names:
                scope[name] = getattr(each, "value", each) if type(each).__name__ == "constexpr" else each
        language = Language(self)
        scope |= {MACHINE: self, "tl": language, "gl": language, "range": language.range}
        scope |= {"min": language.minimum, "max": language.maximum, "locals": builtins.locals}
        made: dict[str, Any] = {}
        exec(code_of(plain), scope, made)
        function = made[plain.__name__]
        assert isinstance(function, FunctionType)
        return function

    def enter(self, bounds: Sequence[Any]) -> Loop:
        """Any turn of a loop over start, stop, step; one more than the last is what stops it."""
        start, stop, step = bounds
        kept = len(self.path)
        turn = self.unknown(0, bits=0)
        value = start + turn * step
        if isinstance(value, Number) and not value.bits:
            value = Number(self, value.term, max(getattr(each, "bits", 0) for each in bounds), value.needs)
        self.path.append((value < stop).term)
        self.require(needs_of(value + step))
        return Loop(value, turn, kept)

    def repeat(self) -> Loop:
        """Any turn of a loop that has no bounds; none turns 2^48 times."""
        return Loop(None, self.unknown(0, 2**48, bits=0), len(self.path))

    def suppose(self, flag: Any) -> None:
        self.path.append(self.flag_term(flag if isinstance(flag, Flag | bool) else self.unknown_flag()))

    def leave(self, loop: Loop) -> None:
        del self.path[loop.kept :]

    def carried(self, value: Any, loop: Loop, step: Any) -> Any:
        """What a name holds when a turn begins: what it began with and what each turn added, or anything."""
        if step is not None and isinstance(value, Number | Address | int) and not isinstance(value, bool):
            return value + self.often(loop.turn, step)
        return self.after(value)

    def often(self, turns: Any, step: Any) -> Any:
        """What so many turns add: one after the other, so that the product need not fit where the sums do."""
        return Number(self, self.term(turns) * self.term(step), 0, needs_of(step))

    def after(self, value: Any) -> Any:
        """What a name may hold after a loop."""
        if isinstance(value, tuple):
            return tuple(self.after(each) for each in value)
        if isinstance(value, Number | int) and not isinstance(value, bool):
            return self.unknown(bits=getattr(value, "bits", 32) or 32)
        if isinstance(value, Address):
            return Address(value.buffer, self.unknown(bits=64))
        return self.unknown_flag() if isinstance(value, Flag | bool) else Anything(self)

    # What loads and stores leave.

    def touch(self, address: Any, mask: Any) -> None:
        if not isinstance(address, Address):
            raise TypeError(f"an address is needed, not {type(address).__name__}")
        frame = sys._getframe(2)
        offset = address.offset if isinstance(address.offset, Number) else Number(self, self.term(address.offset))
        z3, length = self.z3, self.term(address.buffer.length)
        self.accesses.append(
            Access(
                where=f"{frame.f_code.co_name}, line {frame.f_lineno}",
                buffer=address.buffer.name,
                known=(*self.facts, *self.path),
                mask=self.flag_term(mask),
                inside=z3.And(offset.term >= 0, offset.term < length, *offset.needs.values()),
                sound=z3.And(self.flag_term(True), *needs_of(mask).values()),
                last=offset.term == length - 1,
            )
        )

    def _must(self, where: str, *conditions: Any) -> None:
        """What has to be so, whether or not memory is touched."""
        z3 = self.z3
        known, yes, sound = (*self.facts, *self.path), self.flag_term(True), z3.And(*conditions)
        self.accesses.append(Access(where=where, buffer="", known=known, mask=yes, inside=yes, sound=sound, last=yes))


class _Late:
    """A device function whose source is read when it is called."""

    def __init__(self, machine: Machine, found: Any) -> None:
        self.machine, self.found = machine, found

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.machine.function(self.found)(*arguments, **named)


def ways(launch: Callable[[Machine], None], context: Any) -> Iterator[list[Access]]:
    """Every way through a launch and its kernel: the accesses on it."""
    waiting: list[list[bool]] = [[]]
    while waiting:
        machine = Machine(decisions=waiting.pop(), context=context)
        known = len(machine.decisions)
        launch(machine)
        yield machine.accesses
        decided = machine.decisions
        waiting += [[*decided[:place], not decided[place]] for place in range(known, len(decided))]
