"""What launches of several operators hand over alike: whole numbers, optional buffers, and what alignment says.

Knows no kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Address, Buffer, Flag, Number


def within(least: Any, below: Any, bits: int = 64) -> Callable[[Machine, Any, Any], Number]:
    """What a buffer of whole numbers holds: numbers between these."""

    def value(machine: Machine, offset: Any, mask: Any) -> Number:
        found, z3 = machine.unknown(bits=bits), machine.z3
        held = z3.And((found >= least).term, (found < below).term)
        machine.assume(Flag(machine, z3.Implies(machine.flag_term(mask), held), {}))
        return found

    return value


def aligned(m: Machine, axis: Number) -> bool:
    """Where a launch says so, the axis is a multiple of 8."""
    aligned = m.either()
    if aligned:
        m.assume(axis % 8 == 0)
    return aligned


def maybe(m: Machine, buffer: Buffer) -> Buffer | None:
    return buffer if m.either() else None


class _Given:
    """An address that a kernel reads in a table, before it says what lies there."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def to(self, _: Any) -> Address:
        return Address(self._buffer, 0)


def table(names: Sequence[str], rows: Any, length: Any) -> dict[str, Buffer]:
    """Columns of addresses: those of a row are of buffers of this length, each with a name."""
    return {f"{name}s_ptr": Buffer(f"{name}s", rows, _named(Buffer(name, length))) for name in names}


def _named(buffer: Buffer) -> Callable[[Machine, Any, Any], _Given]:
    return lambda *_: _Given(buffer)
