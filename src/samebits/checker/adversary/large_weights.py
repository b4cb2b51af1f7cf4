"""Few rows, and more of them, beside a weight that is large in both its axes, as a model's layers have it.

Libraries split the sums of few rows there, to have work for every core, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from samebits.checker.adversary.attempts import Attempts
from samebits.checker.adversary.sizes import has_weight
from samebits.checker.adversary.trial import Trial

# Each is little larger than the one before, whose time says what it takes.
WEIGHTS = ((512, 640), (1024, 1024), (1100, 1900), (2048, 2048))
FEW_ROWS = (1, 2, 3, 4, 7, 8, 12, 16, 17, 33)


def beside_large_weights(
    attempts: Attempts, letters: str, problem: Callable[..., Trial], format: str, share: float
) -> None:
    """As many of them as the function comes to in a share of the time."""
    if not has_weight(letters) or "batch" not in attempts.ways.promises:
        return
    until, usual = attempts.spent() + share, attempts.most_elements
    for tail in WEIGHTS:
        attempts.most_elements = math.prod(tail)
        base = replace(problem(tail, format=format, seed=attempts.seed + 4), rows="normal")
        base = replace(base, sizes=(attempts.pool_rows(base), *tail))
        if not attempts.left(until) or not attempts.affordable(base) or not attempts.open(base, few_rows=()):
            break
        for count in FEW_ROWS:
            if attempts.left(until):
                attempts.attempt(replace(base, sizes=(count, *tail), pick=f"s{count}"))
    attempts.most_elements = usual
