"""The finite sets that the distillation loss is enumerated over: their definitions and sizes. Runs nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.contracts.finite import FiniteSet, product
from samebits.contracts.spec import Arguments
from samebits.ops.distill_loss.check import IGNORE_INDEX

GRID = 64
VOCABULARIES = 600
ROWS = 4
FEW = 4


def quadruples() -> FiniteSet:
    """V = 2: 64 values for each of the four logits, both targets; a part has one first logit."""
    values = grid_of_64()

    def part(number: int) -> Arguments:
        logits = product(values[number : number + 1], values, values, values).repeat_interleave(2, 0)
        targets = torch.arange(2).repeat(len(logits) // 2)
        return {"student_logits": logits[:, :2], "teacher_logits": logits[:, 2:], "targets": targets}

    return FiniteSet(
        words="V = 2, 64^4 logits (quarters from -6 to 5.75 and 16 numbers up to 10^6), both targets, T in 1, 2, 4,"
        " alpha in 0, 1/2, 1",
        format="float32",
        parts=GRID,
        part=part,
        rows=lambda _: GRID**3 * 2,
    )


def grid_of_64() -> Tensor:
    """48 quarters around 0, where softmaxes are soft, and 16 numbers of other sizes."""
    far = torch.tensor([7.0, 8.0, 12.0, 20.0, 40.0, 90.0, 1000.0, 1e6])
    values = torch.cat([torch.arange(-24, 24) / 4, far, -far]).sort().values
    assert len(values) == GRID and bool((values[1:] > values[:-1]).all())
    return values


def vocabularies() -> FiniteSet:
    """Four rows of every width up to 600, past two borders of lanes; one row is ignored."""

    def part(number: int) -> Arguments:
        vocabulary = number + 1
        place = torch.arange(2 * ROWS * vocabulary, dtype=torch.int64)
        # Whole eighths from -8 to 7.875, in an order that no lane shares.
        logits = ((place * 2654435761 >> 7) % 128 - 64).float().reshape(2, ROWS, vocabulary) / 8
        targets = torch.tensor([0, vocabulary // 2, vocabulary - 1, IGNORE_INDEX])
        return {"student_logits": logits[0], "teacher_logits": logits[1], "targets": targets}

    return FiniteSet(
        words=f"every vocabulary of 1 to {VOCABULARIES} tokens, 4 rows each",
        format="float32",
        parts=VOCABULARIES,
        part=part,
        rows=lambda _: ROWS,
    )


def mixtures() -> FiniteSet:
    """V = 3: 4^6 rows whose sums must round; of four rows three have a target each and one is ignored."""
    values = torch.tensor([-1.3, 0.1, 0.7, 2.9])

    def part(_: int) -> Arguments:
        logits = product(*[values] * 6)
        targets = torch.tensor([0, 1, 2, IGNORE_INDEX]).repeat(len(logits) // 4)
        return {"student_logits": logits[:, :3], "teacher_logits": logits[:, 3:], "targets": targets}

    return FiniteSet(
        words="V = 3, 4^6 rows of logits in float32, T = 3, alpha = 1/2",
        format="float32",
        parts=1,
        part=part,
        rows=lambda _: FEW**6,
    )


def on_both() -> tuple[FiniteSet, ...]:
    """What is compared between the CPU and a GPU."""
    return vocabularies(), mixtures()
