"""As much of `triton.language` as kernels' addresses need: programs, lanes, loads, stores and bounds of loops.

Whatever else it has gives numbers on which no address depends, and is refused an address. Knows no kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Address, Anything, Flag, Number

# Modules of functions that compute with numbers alone.
_ELEMENTARY: Final = "samebits.numerics.elementary"


def spare(machine: Machine, function: Any) -> Callable[..., Any] | None:
    """What stands for an elementary function: its numbers are no address."""
    if not function.fn.__module__.startswith(_ELEMENTARY):
        return None
    count = {"philox": 4}.get(function.fn.__name__, 1)

    def made(*arguments: Any) -> Any:
        _refuse_addresses(arguments)
        found = tuple(Anything(machine) for _ in range(count))
        return found if count > 1 else found[0]

    return made


def _refuse_addresses(arguments: Any) -> None:
    if any(isinstance(each, Address) for each in arguments):
        raise TypeError("an address is handed to a function that is not looked into")


class Language:
    """Stands in the place of `tl`."""

    int32, int64 = 32, 64

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        machine, count = self._machine, {"split": 2}.get(name, 1)

        def computed(*arguments: Any, **named: Any) -> Any:
            _refuse_addresses([*arguments, *named.values()])
            found = tuple(Anything(machine) for _ in range(count))
            return found if count > 1 else found[0]

        computed.__name__ = name
        return _Named(name, computed)

    def program_id(self, axis: int) -> Number:
        found = self._machine.program
        assert axis == 0 and isinstance(found, Number)
        return found

    def arange(self, first: Any, stop: Any, **_: Any) -> Number:
        return self._machine.unknown(first, stop)

    def cdiv(self, n: Any, b: Any) -> Any:
        return self._machine.cdiv(n, b)

    def load(self, address: Any, mask: Any = True, other: Any = None) -> Any:
        machine = self._machine
        machine.touch(address, mask)
        if address.buffer.holds is None:
            return Anything(machine)
        value: Number = address.buffer.holds(machine, address.offset, mask)
        if isinstance(mask, Flag) and isinstance(other, int):
            machine.assume(Flag(machine, machine.z3.Or(mask.term, value.term == other), {}))
        return value

    def store(self, address: Any, value: Any, mask: Any = True) -> None:
        self._machine.touch(address, mask)

    def multiple_of(self, value: Any, _: Any) -> Any:
        return value

    def broadcast_to(self, value: Any, *_: Any) -> Any:
        return value

    def where(self, condition: Any, left: Any, right: Any) -> Any:
        machine = self._machine
        if any(not isinstance(each, Number | int) for each in (left, right)):
            _refuse_addresses((left, right))
            return Anything(machine)
        if isinstance(condition, Anything):
            condition = machine.unknown_flag()
        bits = max(getattr(each, "bits", 0) for each in (left, right))
        chosen = machine.z3.If(machine.flag_term(condition), machine.term(left), machine.term(right))
        needs = {name: each for value in (condition, left, right) for name, each in getattr(value, "needs", {}).items()}
        return Number(machine, chosen, bits, needs)

    def minimum(self, left: Any, right: Any) -> Any:
        return self._first(left, right, lambda a, b: a <= b)

    def maximum(self, left: Any, right: Any) -> Any:
        return self._first(left, right, lambda a, b: a >= b)

    def _first(self, left: Any, right: Any, before: Callable[[Any, Any], Any]) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            return left if before(left, right) else right
        if isinstance(left, Anything) or isinstance(right, Anything):
            return Anything(self._machine)
        return self.where(before(left, right), left, right)

    def range(self, first: Any, stop: Any = None, step: Any = 1, **_: Any) -> tuple[Any, Any, Any]:
        return (0, first, step) if stop is None else (first, stop, step)

    static_range = range

    def cast(self, value: Any, kind: Any) -> Any:
        return Anything(self._machine)

    def static_assert(self, condition: Any) -> None:
        if not isinstance(condition, Flag | Anything):
            assert condition

    def debug_barrier(self) -> None:
        pass


class _Named:
    """A function of the language, or one of its formats: equal to itself alone."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)
