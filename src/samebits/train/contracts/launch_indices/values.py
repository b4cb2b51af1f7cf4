"""What a kernel's source computes with here: whole numbers and conditions without values, addresses, and the rest.

A number stands for one lane of a tensor, whichever it is. It knows what must be so for it to be what the formula says:
that nothing overflowed and no divisor was 0. Knows no kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samebits.train.contracts.launch_indices.machine import Machine

Needs = dict[int, Any]
"""Conditions by the solver's own number for them."""


def needs_of(*values: Any) -> Needs:
    found: Needs = {}
    for each in values:
        found |= getattr(each, "needs", {})
    return found


class Anything:
    """What no address depends on: numbers with fractions, and tensors whose lanes were mixed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Anything:
        return self

    def __getitem__(self, _: Any) -> Anything:
        return self

    def __iter__(self) -> Any:
        raise TypeError("how many there are is not known; allowed: a function that says so")

    def _same(self, *_: Any) -> Anything:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = _same
    __floordiv__ = __rfloordiv__ = __mod__ = __rshift__ = __lshift__ = __and__ = __or__ = __rand__ = __invert__ = _same

    def _either(self, _: Any) -> Flag:
        return self.machine.unknown_flag()

    __lt__ = __le__ = __gt__ = __ge__ = _either
    __eq__ = __ne__ = _either  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return self.machine.decide(self.machine.unknown_flag().term)


class Flag:
    """A condition; one lane of a mask."""

    def __init__(self, machine: Machine, term: Any, needs: Needs) -> None:
        self.machine, self.term, self.needs = machine, term, needs

    def __getitem__(self, _: Any) -> Flag:
        return self

    def _with(self, other: Any, join: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, Anything):
            other = self.machine.unknown_flag()
        return Flag(self.machine, join(self.term, self.machine.flag_term(other)), needs_of(self, other))

    def __and__(self, other: Any) -> Any:
        return self._with(other, self.machine.z3.And)

    def __or__(self, other: Any) -> Any:
        return self._with(other, self.machine.z3.Or)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Flag:
        return Flag(self.machine, self.machine.z3.Not(self.term), self.needs)

    def to(self, *_: Any, **__: Any) -> Anything:
        return Anything(self.machine)

    def __bool__(self) -> bool:
        self.machine.require(self.needs)
        return self.machine.decide(self.term)


class Number:
    """A whole number. `bits`: its width on the device; 0 for what is known when the kernel is compiled."""

    def __init__(self, machine: Machine, term: Any, bits: int = 0, needs: Needs | None = None) -> None:
        self.machine, self.term, self.bits = machine, term, bits
        self.needs: Needs = needs or {}

    shape = (1, 1)

    def __getitem__(self, _: Any) -> Number:
        return self

    def to(self, kind: Any, **_: Any) -> Any:
        """Widened, or narrowed if it fits; to another kind of number it is no longer an address."""
        if kind not in (32, 64):
            return Anything(self.machine)
        return self._sized(self.term, kind, dict(self.needs))

    def _sized(self, term: Any, bits: int, needs: Needs) -> Number:
        if bits:
            fits = self.machine.z3.And(-(2 ** (bits - 1)) <= term, term < 2 ** (bits - 1))
            needs[fits.get_id()] = self.machine.kept(fits)
        return Number(self.machine, term, bits, needs)

    def _made(self, other: Any, join: Callable[[Any, Any], Any], turned: bool = False) -> Any:
        if isinstance(other, float | Anything):
            return Anything(self.machine)
        left, right = (other, self) if turned else (self, other)
        if isinstance(left, Address) or isinstance(right, Address):
            return NotImplemented
        bits = max(getattr(each, "bits", 0) for each in (left, right))
        terms = (self.machine.term(each) for each in (left, right))
        return self._sized(join(*terms), bits, needs_of(left, right))

    def _asked(self, other: Any, join: Callable[[Any, Any], Any]) -> Flag:
        if isinstance(other, float | Anything):
            return self.machine.unknown_flag()
        return Flag(self.machine, join(self.term, self.machine.term(other)), needs_of(self, other))

    def __add__(self, other: Any) -> Any:
        return self._made(other, operator.add)

    def __sub__(self, other: Any) -> Any:
        return self._made(other, operator.sub)

    def __mul__(self, other: Any) -> Any:
        return self._made(other, operator.mul)

    def __radd__(self, other: Any) -> Any:
        return self._made(other, operator.add, True)

    def __rsub__(self, other: Any) -> Any:
        return self._made(other, operator.sub, True)

    def __rmul__(self, other: Any) -> Any:
        return self._made(other, operator.mul, True)

    def __neg__(self) -> Any:
        return 0 - self

    def __floordiv__(self, other: Any) -> Any:
        return self.machine.divided(self, other)[0]

    def __mod__(self, other: Any) -> Any:
        return self.machine.divided(self, other)[1]

    def __rfloordiv__(self, other: Any) -> Any:
        return self.machine.divided(other, self)[0]

    def __rshift__(self, _: Any) -> Anything:
        return Anything(self.machine)

    __rrshift__ = __lshift__ = __rlshift__ = __rshift__

    def __lt__(self, other: Any) -> Flag:
        return self._asked(other, operator.lt)

    def __le__(self, other: Any) -> Flag:
        return self._asked(other, operator.le)

    def __gt__(self, other: Any) -> Flag:
        return self._asked(other, operator.gt)

    def __ge__(self, other: Any) -> Flag:
        return self._asked(other, operator.ge)

    def __eq__(self, other: Any) -> Flag:  # type: ignore[override]
        return self._asked(other, operator.eq)

    def __ne__(self, other: Any) -> Flag:  # type: ignore[override]
        return self._asked(other, operator.ne)

    def __bool__(self) -> bool:
        return bool(self != 0)

    __hash__ = None  # type: ignore[assignment]


class Buffer:
    """Memory of `length` elements. `holds`: of whole numbers, what an index gives; None for other numbers."""

    def __init__(self, name: str, length: Any, holds: Callable[..., Any] | None = None, dtype: Any = None) -> None:
        self.name, self.length, self.holds = name, length, holds
        self.dtype = Kind(dtype)


class Kind:
    """The type of a pointer."""

    def __init__(self, element_ty: Any) -> None:
        self.element_ty = element_ty


class Address:
    """A place in a buffer, counted in elements: whatever is added to it is widened before."""

    def __init__(self, buffer: Buffer, offset: Any) -> None:
        self.buffer, self.offset = buffer, offset
        self.dtype = buffer.dtype

    def __add__(self, other: Any) -> Address:
        return Address(self.buffer, self.offset + (other.to(64) if isinstance(other, Number) else other))

    def __sub__(self, other: int) -> Address:
        return self + (-other)

    __radd__ = __add__

    def __getitem__(self, _: Any) -> Address:
        return self
