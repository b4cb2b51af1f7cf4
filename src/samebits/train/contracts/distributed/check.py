"""How a checker drives schedules: lengths and ranks; files, ranks and what each update takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import fractions, spec

LONGEST = 22_079
"""Sequences at the most."""


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"length": torch.tensor([shape[0]]), "ranks": torch.tensor([shape[1]])}


def _make_files(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """Files beyond one a rank, ranks, sequences of a pass. Seed 0 has the most sequences there may be."""
    more, ranks, micro = shape
    least = ranks * micro
    drawn = LONGEST if seed == 0 else least + int(fractions((1,), seed)[0] * (LONGEST - least))
    numbers = {"files": ranks + more - 1, "ranks": ranks, "sequences": drawn, "micro": micro}
    return {name: torch.tensor([value]) for name, value in numbers.items()}


SPECS = {
    "chunks": spec("chunks", "DN", _make, rows=("length", "ranks")),
    "dealt": spec("dealt", "FNB", _make_files, rows=("files", "ranks"), shared=("sequences", "micro")),
}
