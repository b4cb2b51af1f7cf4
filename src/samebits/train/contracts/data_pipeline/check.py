"""How a checker drives the order and the cutting of data: numbers of sequences and batches, lengths of documents."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import fractions, spec


def _plan(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    sequences, batch = shape
    return {"plan": torch.tensor([seed, sequences, min(batch, sequences)])}


def _documents(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """Documents of 2 to 40 tokens, sequences of up to so many targets."""
    documents, longest = shape
    lengths = torch.from_numpy(2 + (39 * fractions((documents,), 7 * seed + 1)).astype("int64"))
    return {"lengths": lengths, "longest": torch.tensor([min(longest, int(lengths.sum()) - 1)])}


SPECS = {
    "order": spec("order", "NB", _plan, rows=("plan",)),
    "documents": spec("documents", "NL", _documents, rows=("lengths",), shared=("longest",)),
}
