"""Proof that the softmax adds in the declared order: every question that fixes the tree, for every length of a row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.orders import declared_order
from samebits.contracts.proof import Proof
from samebits.contracts.spec import Function
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.order import text
from samebits.numerics.triples import triples
from samebits.ops.softmax import log_softmax, softmax
from samebits.ops.softmax.check import launches
from samebits.ops.softmax.proofs import LONGEST_ROW

# Inputs whose exponentials are 1, one that vanishes beside a 1 while two of it do not, and 0.
ONE, SMALL, NOTHING = 0.0, -17.0, -torch.inf


def _unanswered(function: Function, n: int, questions: np.ndarray, dtype: torch.dtype = torch.float32) -> str:
    """The first question of the declared tree that the row's sum does not answer with yes.

    In row i the leaves a and b are small and c is 1: the sum exceeds 1 only if a and b meet before either meets c."""
    for rows in np.array_split(questions, max(1, questions.size * n // (3 << 22))):
        place = torch.arange(len(rows))
        x = torch.full((len(rows), n), NOTHING, dtype=dtype)
        a, b, c = (torch.from_numpy(column) for column in rows.T)
        x[place, a] = x[place, b] = SMALL
        x[place, c] = ONE
        # The element that is 1 weighs 1 / sum; its logarithm is -log(sum).
        together = function(x, dtype=torch.float32)[place, c] < (0 if function is log_softmax else 1)
        if not bool(together.all()):
            a, b, c = rows[int((~together).nonzero()[0])]
            return f"n = {n}: elements {a} and {b} do not meet before element {c}; declared lanes-256"
    return ""


def _replayed(n: int) -> str:
    """Rows of spread numbers: the bits of the order as it is written down."""
    x = torch.linspace(-20, 3, 4 * n).reshape(4, n)
    differs = compare(softmax(x), softmax(x, backend="reference"))
    return f"n = {n}: against the written order: {differs}" if differs is not None else ""


def _rotated(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A twin: right within rounding, other lanes meet."""
    return softmax(x.roll(1, -1), dtype=dtype).roll(-1, -1)


def every_tree(longest: int = LONGEST_ROW, widest: int = 1024) -> Proof:
    """The tree that measurement reveals is the declared one, for every length of a row.

    Every question that fixes the declared tree is put to the kernel; `widest` bounds what is asked of other formats,
    other instruction sets, and log_softmax."""
    decided, witness, trees = hashlib.sha256(), "", 0
    for n in range(1, longest + 1):
        order = declared_order("lanes-256", n)
        questions = triples(order) if n > 2 else np.zeros((0, 3), np.int64)
        decided.update(text(order).encode())
        witness = witness or _unanswered(softmax, n, questions) or _replayed(n)
        if n <= widest:
            witness = witness or _other_ways(n, questions)
        if witness:
            break
        trees += 1
    wrong: list[Callable[[int], str]] = [
        lambda n: _unanswered(_rotated, n, triples(declared_order("lanes-256", n))),
        lambda n: _unanswered(softmax, n, triples(declared_order("chain-1", n))),
    ]
    caught = sum(any(twin(n) for n in (3, 300)) for twin in wrong)
    return Proof(
        kind="order",
        cases=trees,
        expected=longest,
        planted=len(wrong),
        caught=caught,
        witness=witness,
        digest=decided.hexdigest(),
        bound=f"n <= {longest}, float32; 16-bit numbers, log_softmax and every instruction set for n <= {widest}",
    )


def _other_ways(n: int, questions: np.ndarray) -> str:
    wrong = _unanswered(log_softmax, n, questions)
    for dtype in (torch.bfloat16, torch.float16):
        wrong = wrong or _unanswered(softmax, n, questions, dtype)
    for numbers in launches("cpu", "float32"):
        if numbers["threads"] == 1 and not wrong:
            with launching(**numbers):
                wrong = _unanswered(softmax, n, questions)
    return wrong
