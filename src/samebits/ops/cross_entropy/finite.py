"""The finite sets that cross-entropy is enumerated over: their definitions and sizes. Runs nothing.

Logits are the members: hidden holds them and the weight is the identity, so that every product is exact."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.contracts.finite import FINITE_BFLOAT16, FiniteSet, finite_bfloat16, product
from samebits.contracts.spec import Arguments
from samebits.ops.logprob.check import IGNORED

# First logits of a part of the pairs: 2 * 16 * 65,280 rows are half a gigabyte with everything that judges them.
FIRST_LOGITS = 16
GRID = 256
SQUARES = 600
FEW = 8


def pairs() -> FiniteSet:
    """V = 2: every pair of finite bfloat16 numbers, both targets."""
    values = finite_bfloat16()
    assert len(values) == FINITE_BFLOAT16

    def part(number: int) -> Arguments:
        return _of_logits(product(values[number * FIRST_LOGITS : (number + 1) * FIRST_LOGITS], values), 2)

    return FiniteSet(
        words="V = 2, all 65,280^2 pairs of finite bfloat16 logits, both targets",
        format="bfloat16",
        parts=FINITE_BFLOAT16 // FIRST_LOGITS,
        part=part,
        rows=lambda _: FIRST_LOGITS * FINITE_BFLOAT16 * 2,
    )


def grid_of_pairs() -> FiniteSet:
    """V = 2: every finite bfloat16 number beside each of 256, both targets: what one core enumerates in a minute."""
    values, firsts = finite_bfloat16(), grid_of_256()

    def part(number: int) -> Arguments:
        return _of_logits(product(firsts[number * FIRST_LOGITS : (number + 1) * FIRST_LOGITS], values), 2)

    return FiniteSet(
        words="V = 2, 256 x 65,280 pairs of finite bfloat16 logits, both targets",
        format="bfloat16",
        parts=GRID // FIRST_LOGITS,
        part=part,
        rows=lambda _: FIRST_LOGITS * FINITE_BFLOAT16 * 2,
    )


def triples() -> FiniteSet:
    """V = 3: every triple of a grid, all three targets; a part has one first logit."""
    values = grid_of_256()

    def part(number: int) -> Arguments:
        return _of_logits(product(values[number : number + 1], values, values), 3)

    return FiniteSet(
        words="V = 3, 256^3 triples (eighths from -8 to 7.875 and 128 bfloat16 numbers of every size), 3 targets",
        format="bfloat16",
        parts=GRID,
        part=part,
        rows=lambda _: GRID**2 * 3,
    )


def grid_of_256() -> Tensor:
    """128 eighths around 0, and 128 numbers spread over all finite patterns: gaps that matter, and all others."""
    near = torch.arange(-64, 64).bfloat16() / 8
    spread = finite_bfloat16()[127 :: FINITE_BFLOAT16 // 128]
    values = torch.cat([near, spread]).sort().values
    assert len(values) == GRID and bool((values[1:] > values[:-1]).all())
    return values


def squares() -> FiniteSet:
    """n rows of n logits for every n up to 600, past two borders of vocabulary blocks; each token is a target once."""

    def part(number: int) -> Arguments:
        n = number + 1
        place = torch.arange(n * n, dtype=torch.int64)
        # Whole eighths from -8 to 7.875, in an order that no lane or block shares.
        logits = ((place * 2654435761 >> 7) % 128 - 64).float().reshape(n, n) / 8
        return {"hidden": logits, "weight": torch.eye(n), "targets": torch.arange(n)}

    return FiniteSet(
        words=f"every vocabulary of 1 to {SQUARES} tokens, each of them a target",
        format="float32",
        parts=SQUARES,
        part=part,
        rows=lambda number: number + 1,
    )


def mixtures() -> FiniteSet:
    """8^3 rows of hidden under a weight whose products must round, every target and none."""
    values = torch.tensor([-3.0, -1.0, -0.1, 0.0, 0.3, 1.0, 2.7, 1000.0])
    # Rows of a weight with full significands: the order of a logit's three terms shows in its bits.
    weight = torch.tensor([[0.1, -0.7, 0.3], [1.1, 0.2, -0.9], [-0.3, 1.7, 0.6]])

    def part(_: int) -> Arguments:
        rows = product(values, values, values)
        targets = torch.tensor([0, 1, 2, IGNORED]).repeat(len(rows))
        return {"hidden": rows.repeat_interleave(4, 0), "weight": weight, "targets": targets}

    return FiniteSet(
        words="8^3 rows of hidden, one weight of 3 tokens, every target and none, in float32",
        format="float32",
        parts=1,
        part=part,
        rows=lambda _: FEW**3 * 4,
    )


def on_both() -> tuple[FiniteSet, ...]:
    """What is compared between the CPU and a GPU."""
    return squares(), mixtures()


def _of_logits(logits: Tensor, vocabulary: int) -> Arguments:
    """Every row of logits with every target."""
    targets = torch.arange(vocabulary).repeat(len(logits))
    identity = torch.eye(vocabulary, dtype=logits.dtype)
    return {"hidden": logits.repeat_interleave(vocabulary, 0), "weight": identity, "targets": targets}
