"""Evaluates a program on numpy arrays: the plain meaning of every operation, one array operation each.

Knows no function by name. Blocks keep the intermediate arrays in cache; they cannot reach a bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from samebits.numerics.elementary.program import Program, Value
from samebits.numerics.fma import fma32

Array = NDArray[Any]

BLOCK: Final = 1 << 15


def _multiply_high(a: Array, b: Array) -> Array:
    return ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "fma": fma32,
    "mul": np.multiply,
    "add": np.add,
    "sub": np.subtract,
    "negate": np.negative,
    "int_mul": np.multiply,
    "int_add": np.add,
    "int_sub": np.subtract,
    "multiply_high": _multiply_high,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "select": np.where,
    "to_bits": lambda a: a.view(np.uint32),
    "from_bits": lambda a: a.view(np.float32),
    "as_signed": lambda a: a.view(np.int32),
    "as_unsigned": lambda a: a.view(np.uint32),
    "to_float": lambda a: a.astype(np.float32),
}


def run(program: Program, *inputs: Array) -> tuple[Array, ...]:
    """The outputs of a program for flat input arrays of equal length."""
    outputs = tuple(np.empty(inputs[0].shape, output.kind.value) for output in program.outputs)
    for start in range(0, inputs[0].size, BLOCK):
        block = slice(start, start + BLOCK)
        for whole, part in zip(outputs, _run_block(program, [array[block] for array in inputs]), strict=True):
            whole[block] = part
    return outputs


def _run_block(program: Program, inputs: list[Array]) -> list[Array]:
    known: dict[int, Array] = {id(value): array for value, array in zip(program.inputs, inputs, strict=True)}

    def lookup(value: Value) -> Array:
        if value.operation == "constant":
            return np.asarray(value.constant, value.kind.value)
        return known[id(value)]

    # Overflow, invalid operations and wrapping integers are part of the definitions, not accidents.
    with np.errstate(all="ignore"):
        for value in program.statements:
            known[id(value)] = OPERATIONS[value.operation](*(lookup(operand) for operand in value.operands))
    return [lookup(output) for output in program.outputs]
