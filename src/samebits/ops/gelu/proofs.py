"""Proofs about the GELU: every finite bfloat16 and float16 number, by the error function and by tanh.

Each is a function without arguments, named by the contract: on the CPU, and at the end by Triton, on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torch import Tensor

from samebits.contracts.enumeration import Chunk, by_triton, same_on_both
from samebits.contracts.loading import load_contract
from samebits.contracts.proof import Proof
from samebits.contracts.spec import Arguments
from samebits.ops.elements import FINITE, every_number, finite_numbers
from samebits.ops.gelu.check import SPECS

CONTRACT = load_contract(Path(__file__).with_name("contract.yaml"))
# From here on x*x leaves float32, and the gradient by tanh is not a number.
LARGE_SQUARE = 2.0**64


def _alone(numbers: Tensor) -> Arguments:
    return {"x": numbers}


def _proof(identifier: str, below: float = math.inf) -> Proof:
    """All obligations that the contract's entry names."""
    identifiers = CONTRACT.proofs[identifier].obligations
    subject = CONTRACT.subjects[CONTRACT.obligations[identifiers[0]].subject]
    return every_number(CONTRACT, SPECS[subject.spec], identifiers, _alone, below)


def by_the_error_function() -> Proof:
    """What a GELU must be, by the error function."""
    return _proof("GE-PR1")


def by_tanh() -> Proof:
    """What a GELU must be, by tanh."""
    return _proof("GE-PR2")


def bits_by_the_error_function() -> Proof:
    """The same bits in every arrangement, and each within its bound."""
    return _proof("GE-PR3")


def bits_by_tanh() -> Proof:
    """The same bits in every arrangement."""
    return _proof("GE-PR4")


def accuracy_by_tanh() -> Proof:
    """Each within its bound, while its square is finite."""
    return _proof("GE-PR5", LARGE_SQUARE)


def _in_float32() -> Iterator[Chunk]:
    for format, count in FINITE.items():
        yield Chunk(arguments={"x": finite_numbers(format).float().view(8, -1)}, format="float32", members=count)


def _on_both(identifier: str) -> Proof:
    """The promise `device` for every finite 16-bit number, in float32."""
    spec = SPECS[CONTRACT.subjects[CONTRACT.obligations[identifier].subject].spec]
    return same_on_both(
        CONTRACT,
        spec,
        identifier,
        _in_float32,
        expected=sum(FINITE.values()),
        bound="all finite bfloat16 and float16 numbers in float32, forward and backward",
    )


by_the_error_function_by_triton = by_triton(by_the_error_function)
by_tanh_by_triton = by_triton(by_tanh)
bits_by_the_error_function_by_triton = by_triton(bits_by_the_error_function)
bits_by_tanh_by_triton = by_triton(bits_by_tanh)
accuracy_by_tanh_by_triton = by_triton(accuracy_by_tanh)
error_function_on_both = partial(_on_both, "GE-OB107")
tanh_on_both = partial(_on_both, "GE-OB207")
