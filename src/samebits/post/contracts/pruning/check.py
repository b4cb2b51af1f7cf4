"""How a checker drives the pruning of one weight: rows of a recipe, positive squares, a share that the seed picks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import numbers, spec
from samebits.post.contracts.pruning import SIZES

SHARES = (0.5, 0.0, 1.0, 0.3, 0.9)


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    squares = numbers("normal", (shape[1],), seed + 1, "float32").double().square() + 2.0**-20
    share = torch.tensor([SHARES[seed % len(SHARES)]], dtype=torch.float64)
    return {"weight": numbers(recipe, shape, seed, format), "squares": squares, "share": share}


def _make_model(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """Models; the second size only tells draws apart."""
    share = torch.tensor([SHARES[seed % len(SHARES)]], dtype=torch.float64)
    return {"weights": numbers(recipe, (shape[0], sum(SIZES.values())), 4096 * shape[1] + seed, format), "share": share}


SPECS = {
    "pruning": spec("pruning", "NK", _make, rows=("weight",), shared=("squares", "share")),
    "pruned_model": spec("pruned_model", "NK", _make_model, rows=("weights",), shared=("share",)),
}
