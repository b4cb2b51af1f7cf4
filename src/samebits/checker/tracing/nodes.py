"""Expressions as numbers: equal expressions get one number, because every node is made once and only once.

Knows no kernel and no memory. A node is an operation, its dtype and its operands. What is simplified is simplified
because the bits are equal for every input that the facts below allow; nothing else is. A maximum is a set, for it is
one value in any order but for the sign of a zero; whatever leaves that sign open is wrapped as `loosely` until an
operation that does not show it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from samebits.checker.tracing.patterns import holds, is_float, pattern_of, value_of
from samebits.numerics.fma import fma32

# Facts about a value, whatever the data: a NaN has no sign; ABOVE and BELOW exclude it.
NONNEGATIVE: Final = 1  # the sign bit is clear
NEVER_MINUS_ZERO: Final = 2
ABOVE: Final = 4  # neither -inf nor NaN
BELOW: Final = 8  # neither +inf nor NaN
NUMBER: Final = 16  # not NaN
SMALL: Final = 32  # at most 2^32 away from 0, or NaN
LIMITED: Final = 64  # at most 2^64 away from 0, or NaN, or -inf

# Operations that hand a zero of open sign on as one, and those whose result does not show it.
LOOSENED: Final = frozenset(
    ("add", "sub", "mul", "fma", "fused", "cast", "max", "min", "tanh", "erf", "sin", "sigmoid")
)
HIDING: Final = frozenset(("exp", "exp2", "cos", "abs", "eq", "ne", "lt", "le", "gt", "ge"))
COMPARISONS: Final = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
COMMUTATIVE: Final = frozenset(("add", "mul", "eq", "ne", "or", "and"))


class RefusedError(Exception):
    """What the kernel does is not one expression for every row, or cannot be said to be; one line."""


class Nodes:
    """The table of all expressions met."""

    def __init__(self, *, finite: bool) -> None:
        self.finite = finite
        """Whether products with a weight of exactly 0 are 0: values that no weight reaches are taken as finite."""
        self.keys: list[tuple] = []
        self.facts: list[int] = []
        self._ids: dict[tuple, int] = {}
        self._made: dict[tuple, int] = {}
        self._values: dict[int, float] = {}
        self._digests: dict[int, bytes] = {}
        # No expression has number 0.
        self._intern(("nothing", ""))

    def _intern(self, key: tuple, facts: int = 0) -> int:
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.keys)
            self.keys.append(key)
            self.facts.append(facts)
        return found

    def leaf(self, tensor: str, place: int, dtype: str) -> int:
        return self._intern(("leaf", dtype, tensor, int(place)))

    def constant(self, dtype: str, bits: int) -> int:
        """A constant of a dtype by its pattern, or by its value where it is an integer."""
        key = ("constant", dtype, int(bits))
        found = self._ids.get(key)
        if found is not None:
            return found
        value, facts = value_of(dtype, int(bits)), 0
        if value is not None:
            minus = math.copysign(1.0, value) < 0
            facts |= NONNEGATIVE | NEVER_MINUS_ZERO if not minus else NEVER_MINUS_ZERO if value != 0 else 0
            facts |= SMALL if not abs(value) > 2.0**32 else 0
            facts |= LIMITED if not abs(value) > 2.0**64 or value == -math.inf else 0
            if not math.isnan(value):
                facts |= NUMBER | (ABOVE if value != -math.inf else 0) | (BELOW if value != math.inf else 0)
        found = self._intern(key, facts)
        if value is not None:
            self._values[found] = value
        return found

    def value(self, node: int) -> float | None:
        """What a constant of a float dtype is worth."""
        return self._values.get(node)

    def truth(self, node: int) -> bool | None:
        key = self.keys[node]
        return bool(key[2]) if key[0] == "constant" and key[1] == "int1" else None

    def number(self, dtype: str, value: float) -> int:
        return self.constant(dtype, pattern_of(dtype, value))

    def bare(self, node: int) -> int:
        """The node without the wrapper that leaves the sign of a zero open."""
        key = self.keys[node]
        return int(key[2]) if key[0] == "loosely" else node

    def loosely(self, node: int) -> int:
        if self.keys[node][0] == "loosely" or (self.value(node) or 0.0) != 0.0:
            return node
        return self._intern(("loosely", self.keys[node][1], node), self.facts[node] & ~(NONNEGATIVE | NEVER_MINUS_ZERO))

    def make(self, op: str, dtype: str, arguments: Sequence[int]) -> int:
        """The node of an operation on nodes, simplified."""
        key = (op, dtype, *arguments)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(op, dtype, arguments)
        return found

    def _make(self, op: str, dtype: str, arguments: Sequence[int]) -> int:
        bare = [self.bare(argument) for argument in arguments]
        open_signs = [one != other for one, other in zip(bare, arguments, strict=True)]
        made = self._exact(op, dtype, bare)
        if not any(open_signs) or op in HIDING or self._hidden(op, bare, open_signs):
            return made
        if op == "select" and not open_signs[0]:
            return self.loosely(made)
        if op not in LOOSENED and not (op == "div" and not open_signs[1]):
            raise RefusedError(f"{op} would show the sign of a zero that depends on the order")
        return self.loosely(made)

    def _hidden(self, op: str, bare: list[int], open_signs: list[bool]) -> bool:
        """Whether the result is the same for both signs of the zeros."""
        plus = [self._is(argument, 0.0, minus=False) for argument in bare]
        if op == "add":
            known = [one for one, is_open in zip(bare, open_signs, strict=True) if not is_open]
            return any(self.facts[one] & NEVER_MINUS_ZERO for one in known)
        if op == "sub":
            return plus[0]
        if op == "fma":
            return plus[2]
        return op == "select" and not open_signs[0] and plus[1] and self._asks(bare[0], bare[2], 0.0)

    def _is(self, node: int, value: float, *, minus: bool) -> bool:
        own = self.value(node)
        return own is not None and own == value and (math.copysign(1.0, own) < 0) == minus

    def _asks(self, condition: int, node: int, value: float) -> bool:
        """Whether a condition is true wherever node == value: that comparison itself, or an `or` with it."""
        key = self.keys[condition]
        if key[0] == "or":
            return any(self._asks(int(part), node, value) for part in key[2:])
        return key[0] == "eq" and node in key[2:] and any(self.value(int(part)) == value for part in key[2:])

    def _exact(self, op: str, dtype: str, arguments: list[int]) -> int:
        if op in ("max", "min"):
            return self._extreme(op, dtype, arguments)
        if op == "fma":
            arguments = [*sorted(arguments[:2]), arguments[2]]
        elif op in COMMUTATIVE:
            arguments = sorted(arguments)
        simple = self._simple(op, dtype, arguments)
        return self._intern((op, dtype, *arguments), self._facts(op, arguments)) if simple is None else simple

    def _extreme(self, op: str, dtype: str, arguments: list[int]) -> int:
        members: set[int] = set()
        for argument in arguments:
            key = self.keys[argument]
            members |= set(key[2:]) if key[0] == op else {argument}
        if len(members) == 1:
            return members.pop()
        # A maximum leaves NaNs out: one number among its members makes it a number.
        facts = NUMBER if any(self.facts[member] & NUMBER for member in members) else 0
        facts |= LIMITED if all(self.facts[member] & LIMITED for member in members) else 0
        made = self._intern((op, dtype, *sorted(members)), facts)
        return self.loosely(made) if is_float(dtype) else made

    def _simple(self, op: str, dtype: str, arguments: list[int]) -> int | None:
        values = [self.value(argument) for argument in arguments]
        if op == "select":
            truth = self.truth(arguments[0])
            if truth is not None:
                return arguments[1 if truth else 2]
            return arguments[1] if arguments[1] == arguments[2] else None
        if op == "eq" and arguments[0] == arguments[1] and self.facts[arguments[0]] & NUMBER:
            return self.constant("int1", 1)
        if all(value is not None for value in values):
            return self._folded(op, dtype, [float(value) for value in values if value is not None])
        if op == "sub" and values[0] == -math.inf and self.facts[arguments[1]] & ABOVE:
            return arguments[0]
        if op == "mul" and 1.0 in values:
            return arguments[1 - values.index(1.0)]
        if op == "add":
            return self._plus_zero(arguments[0], values[1]) or self._plus_zero(arguments[1], values[0])
        return self._simple_fma(arguments, values) if op == "fma" else None

    def _plus_zero(self, node: int, zero: float | None) -> int | None:
        """The node itself, where what is added to it is -0, or +0 and the node is never -0."""
        if zero != 0.0 or zero is None:
            return None
        return node if math.copysign(1.0, zero) < 0 or self.facts[node] & NEVER_MINUS_ZERO else None

    def _simple_fma(self, arguments: list[int], values: list[float | None]) -> int | None:
        (x, y, z), (a, b, _) = arguments, values
        zero, other = (a, y) if a == 0.0 else (b, x)
        if zero == 0.0 and zero is not None and (self.finite or self.value(other) is not None):
            sign = self._sign(other)
            known = None if sign is None else self._plus_zero(z, zero * sign)
            return self.loosely(z) if known is None else known
        for factor, node, value in ((a, y, b), (b, x, a)):
            if value == -math.inf and factor is not None and factor > 0 and self.facts[z] & BELOW:
                return node
            if factor == 1.0:
                return self._exact("add", str(self.keys[z][1]), [node, z])
        return None

    def _sign(self, node: int) -> float | None:
        """The sign of a value, where it is known."""
        value = self.value(node)
        if value is not None:
            return math.copysign(1.0, value)
        return 1.0 if self.facts[node] & NONNEGATIVE else None

    def fused(self, accumulator: int, pairs: Sequence[tuple[int, int]]) -> int:
        """The accumulator and a group of products added as one by a matrix unit: exact inside, so without an order."""
        start, zero = self.bare(accumulator), {one for one in (a for a, _ in pairs) if self.value(one) == 0.0}
        zero |= {one for one in (b for _, b in pairs) if self.value(one) == 0.0}
        kept = [pair for pair in pairs if not (zero & set(pair) and (self.finite or set(pair) <= zero))]
        if not kept:
            return self.loosely(start)
        signless = start != accumulator or len(kept) < len(pairs)
        flat = [one for pair in sorted(tuple(sorted(pair)) for pair in kept) for one in pair]
        made = self._intern(("fused", "fp32", start, *flat))
        return self.loosely(made) if signless else made

    def _folded(self, op: str, dtype: str, values: list[float]) -> int | None:
        if op in COMPARISONS:
            one, other = values
            outcome = {
                "eq": one == other,
                "ne": one != other,
                "lt": one < other,
                "le": one <= other,
                "gt": one > other,
                "ge": one >= other,
            }[op]
            return self.constant("int1", int(outcome))
        if op == "cast":
            # Only what the other format holds exactly: no rounding is modelled here.
            return self.number(dtype, values[0]) if holds(dtype, values[0]) else None
        if op in ("exp", "exp2") and values[0] == -math.inf:
            return self.number(dtype, 0.0)
        if dtype != "fp32":
            return None
        with np.errstate(all="ignore"):
            terms = [np.array([value], np.float32) for value in values]
            if op in ("add", "sub", "mul"):
                result = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op](*terms)
            elif op == "fma" and all(map(math.isfinite, values)):
                result = fma32(*terms)
            else:
                return None
        return self.constant("fp32", int(result.view(np.uint32)[0]))

    def _facts(self, op: str, arguments: list[int]) -> int:
        facts = [self.facts[argument] for argument in arguments]
        if op in ("exp", "exp2", "abs"):
            return NONNEGATIVE | NEVER_MINUS_ZERO
        if op == "log":
            return NEVER_MINUS_ZERO
        if op == "tanh":
            return SMALL | LIMITED
        square = op in ("mul", "fma") and arguments[0] == arguments[1]
        if op == "select":
            kept = facts[1] & facts[2]
            if facts[1] & ABOVE and facts[2] & NUMBER and self._asks(arguments[0], arguments[2], -math.inf):
                kept |= ABOVE | NUMBER
            return kept
        made = 0
        if op in ("add", "mul", "fma", "fused", "cast") and (square or all(each & NONNEGATIVE for each in facts)):
            made |= NONNEGATIVE | NEVER_MINUS_ZERO
        if op == "fma" and square:
            # A square is never -0, and a sum is -0 only where both terms are.
            made = (NONNEGATIVE if facts[2] & NONNEGATIVE else 0) | NEVER_MINUS_ZERO
        if op == "add" and any(each & NEVER_MINUS_ZERO for each in facts):
            made |= NEVER_MINUS_ZERO
        if op == "sub" and self.value(arguments[0]) == 0.0 and facts[1] & ABOVE:
            made |= BELOW | NUMBER
        if op == "mul":
            for mine, other in ((0, 1), (1, 0)):
                factor = self.value(arguments[mine])
                if factor is None or not 0.0 < factor <= 2.0**32:
                    continue
                # Nothing overflows where the other factor does not grow, or has far to go.
                if factor <= 1.0 or facts[other] & LIMITED:
                    made |= facts[other] & (ABOVE | BELOW | NUMBER)
                made |= LIMITED if facts[other] & SMALL else 0
        return made

    def digest(self, node: int) -> str:
        """SHA-256 of the expression, the same in every process."""
        waiting = [node]
        while waiting:
            current = waiting[-1]
            key = self.keys[current]
            kids = () if key[0] in ("leaf", "constant") else key[2:]
            missing = [kid for kid in kids if kid not in self._digests]
            if missing:
                waiting.extend(missing)
                continue
            waiting.pop()
            parts = [self._digests[kid] for kid in kids]
            if key[0] in COMMUTATIVE or key[0] in ("max", "min"):
                parts.sort()
            elif key[0] == "fma":
                parts[:2] = sorted(parts[:2])
            elif key[0] == "fused":
                pairs = sorted(sorted(parts[at : at + 2]) for at in range(1, len(parts), 2))
                parts = [parts[0], *(part for pair in pairs for part in pair)]
            head = repr(key if not kids else key[:2]).encode()
            self._digests[current] = hashlib.sha256(head + b"".join(parts)).digest()
        return self._digests[node].hex()
