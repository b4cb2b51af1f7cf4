"""Straight-line programs over 32-bit values: the form in which every elementary function is written down once.

Knows no backend. A definition is an ordinary Python function over `Value`; tracing it records one operation after
another, and the recorded list is what numpy evaluates and what the C++ and Triton emitters print.

Every operation has one meaning on every machine: float32 operations round once, to nearest even; integers wrap; a
shift amount lies in 0..31 by construction. One freedom would remain: a compiler may contract `a * b + c` into a fused
operation and so drop a rounding. So a bare product is refused wherever it could reach an addition: as an operand of
add or sub, and as the output of a program, which a caller may add to something. Write `fma`, or `rounded_product`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np


class Kind(StrEnum):
    """What the 32 bits of a value mean."""

    FLOAT = "float32"
    UNSIGNED = "uint32"
    SIGNED = "int32"
    TRUTH = "bool"


class ProgramError(ValueError):
    """A definition that could mean different bits on different machines."""


# Operations whose result is a fresh rounding or a yes/no answer: nothing of a product shows through them.
ENDS_PRODUCT: Final = {"fma", "add", "sub", "less", "less_equal", "equal"}
SHIFTS: Final = {"shift_left", "shift_right"}
# Operations that C++ and Triton write alike, between their operands.
INFIX: Final = {
    "mul": "*",
    "add": "+",
    "sub": "-",
    "int_mul": "*",
    "int_add": "+",
    "int_sub": "-",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
    "less": "<",
    "less_equal": "<=",
    "equal": "==",
}


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One result in a program; the arithmetic operators record further operations."""

    program: Program
    name: str
    kind: Kind
    operation: str
    operands: tuple[Value, ...] = ()
    constant: float | int = 0
    product: bool = False
    """Whether a bare float product may show through this value unrounded."""

    def __add__(self, other: Value | float) -> Value:
        return self.program.record("add" if self.kind is Kind.FLOAT else "int_add", self.kind, self, other)

    def __sub__(self, other: Value | float) -> Value:
        return self.program.record("sub" if self.kind is Kind.FLOAT else "int_sub", self.kind, self, other)

    def __rsub__(self, other: float) -> Value:
        return self.program.constant(self.kind, other) - self

    def __mul__(self, other: Value | float) -> Value:
        return self.program.record("mul" if self.kind is Kind.FLOAT else "int_mul", self.kind, self, other)

    def __neg__(self) -> Value:
        return self.program.record("negate", self.kind, self)

    def __and__(self, other: Value | int) -> Value:
        return self.program.record("and", self.kind, self, other)

    def __or__(self, other: Value | int) -> Value:
        return self.program.record("or", self.kind, self, other)

    def __xor__(self, other: Value | int) -> Value:
        return self.program.record("xor", self.kind, self, other)

    def __lshift__(self, amount: Value | int) -> Value:
        return self.program.record("shift_left", self.kind, self, amount)

    def __rshift__(self, amount: Value | int) -> Value:
        """Arithmetic for signed values, logical for unsigned ones."""
        return self.program.record("shift_right", self.kind, self, amount)

    def __lt__(self, other: Value | float) -> Value:
        return self.program.record("less", Kind.TRUTH, self, other)

    def __le__(self, other: Value | float) -> Value:
        return self.program.record("less_equal", Kind.TRUTH, self, other)

    def equals(self, other: Value | float) -> Value:
        return self.program.record("equal", Kind.TRUTH, self, other)


@dataclass(eq=False)
class Program:
    """A named list of operations from inputs to outputs. Equal operations are recorded once."""

    name: str
    description: str = ""
    inputs: list[Value] = field(default_factory=list)
    statements: list[Value] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()
    _known: dict[object, Value] = field(default_factory=dict)

    def constant(self, kind: Kind, value: float) -> Value:
        """A float constant must be a float32 number, an integer must fit its kind: nothing is rounded quietly."""
        if kind is Kind.FLOAT and float(np.float32(value)) != value:
            raise ProgramError(f"{self.name}: constant {value!r} is no float32 number")
        if kind in (Kind.UNSIGNED, Kind.SIGNED):
            limits = np.iinfo(kind.value)
            if value != int(value) or not limits.min <= value <= limits.max:
                raise ProgramError(f"{self.name}: constant {value!r} does not fit {kind}")
        exact = float(value) if kind is Kind.FLOAT else int(value)
        key = ("constant", kind, exact.hex() if isinstance(exact, float) else exact)
        return self._known.setdefault(key, Value(self, "", kind, "constant", constant=exact))

    def record(self, operation: str, kind: Kind, *operands: Value | float) -> Value:
        leading = operands[1] if operation == "select" else operands[0]
        assert isinstance(leading, Value), f"{self.name}: {operation} begins with a plain number"
        values = tuple(
            operand if isinstance(operand, Value) else self.constant(leading.kind, operand) for operand in operands
        )
        self._check(operation, values)
        key = (operation, kind, tuple(id(value) for value in values))
        if key not in self._known:
            product = operation == "mul" or (operation not in ENDS_PRODUCT and any(v.product for v in values))
            self._known[key] = Value(self, f"v{len(self.statements)}", kind, operation, values, product=product)
            self.statements.append(self._known[key])
        return self._known[key]

    def _check(self, operation: str, values: Sequence[Value]) -> None:
        kinds = [value.kind for value in values]
        data_kinds = kinds[1:] if operation == "select" else kinds
        if len(set(data_kinds)) > 1:
            raise ProgramError(f"{self.name}: {operation} of mixed kinds {[str(kind) for kind in kinds]}")
        if operation in ("add", "sub") and any(value.product for value in values):
            raise ProgramError(f"{self.name}: a bare product feeds {operation}; a compiler may fuse the two: write fma")
        if operation in SHIFTS:
            amount = values[1]
            masked = amount.operation == "and" and any(
                part.operation == "constant" and 0 <= part.constant <= 31 for part in amount.operands
            )
            if not masked and not (amount.operation == "constant" and 0 <= amount.constant <= 31):
                raise ProgramError(f"{self.name}: a shift amount must be a constant in 0..31 or masked with & 31")

    def live_statements(self) -> list[Value]:
        """The statements that an output needs, in order."""
        needed = {id(output) for output in self.outputs}
        kept: list[Value] = []
        for value in reversed(self.statements):
            if id(value) in needed:
                kept.append(value)
                needed |= {id(operand) for operand in value.operands}
        return kept[::-1]


def trace(
    name: str, definition: Callable[..., Value | tuple[Value, ...]], kinds: Sequence[Kind], input_names: Sequence[str]
) -> Program:
    """Record a definition by running it once on its inputs."""
    program = Program(name, (definition.__doc__ or "").strip())
    program.inputs = [Value(program, text, kind, "input") for text, kind in zip(input_names, kinds, strict=True)]
    outputs = definition(*program.inputs)
    program.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if any(output.product for output in program.outputs):
        raise ProgramError(f"{name}: a bare product is the output; a caller's addition may be fused with it")
    program.statements = program.live_statements()
    return program


def fma(a: Value, b: Value | float, c: Value | float) -> Value:
    """a * b + c, rounded once."""
    return a.program.record("fma", Kind.FLOAT, a, b, c)


def rounded_product(a: Value, b: Value | float) -> Value:
    """a * b as a product that no compiler can fuse into a later addition; a zero result is +0."""
    return fma(a, b, 0.0)


def select(condition: Value, yes: Value, no: Value | float) -> Value:
    return condition.program.record("select", yes.kind, condition, yes, no)


def to_bits(a: Value) -> Value:
    return a.program.record("to_bits", Kind.UNSIGNED, a)


def from_bits(a: Value) -> Value:
    return a.program.record("from_bits", Kind.FLOAT, a)


def as_signed(a: Value) -> Value:
    return a.program.record("as_signed", Kind.SIGNED, a)


def as_unsigned(a: Value) -> Value:
    return a.program.record("as_unsigned", Kind.UNSIGNED, a)


def to_float(a: Value) -> Value:
    """Signed integer to float32; exact below 2^24 in size, else to nearest even."""
    return a.program.record("to_float", Kind.FLOAT, a)


def multiply_high(a: Value, b: Value | int) -> Value:
    """The upper 32 bits of the 64-bit product of unsigned values."""
    return a.program.record("multiply_high", Kind.UNSIGNED, a, b)
