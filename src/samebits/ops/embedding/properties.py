"""What an embedding must be, whatever it is built of: predicates that its contract names and the checker executes."""

from __future__ import annotations

from typing import Any

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.ops.embedding import NONE
from samebits.ops.embedding.reference import backward

# Rows of the table that all positions of a gradient share.
FEW = 5


def copies_rows(call: Call, tolerance: Tolerance) -> str:
    """Row m is the table's row ids[m], every bit of it, NaN and -0 too; the ids' own axes stay."""
    ids, weight = call.arguments.values()
    wrong = difference(call.output, weight[ids], tolerance, words="rows")
    folded = call.again(ids=ids[None, :, None])
    return wrong or difference(folded, weight[ids][None, :, None], tolerance, words="rows of ids with three axes")


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """Ids below 0 or beyond the table, wrong dtypes and no table at all: one line each."""
    ids, weight = call.arguments.values()
    bad: dict[str, dict[str, Any]] = {
        "id -1": {"ids": torch.full_like(ids, -1)},
        "id V": {"ids": torch.full_like(ids, weight.shape[0])},
        "ids of int16": {"ids": ids.to(torch.int16)},
        "a table of float64": {"weight": weight.double()},
        "a table with three axes": {"weight": weight[None]},
        "a table without rows": {"weight": weight[:0]},
    }
    for words, changed in bad.items():
        said = call.refusal(None, **changed)
        if not said or "\n" in said:
            return f"{words} is accepted" if not said else f"{words}: refused in more than one line"
    return ""


def gradient_is_the_chain(call: Call, tolerance: Tolerance) -> str:
    """dW[v] is the chain over the positions with id v, ascending, rounded once: bit for bit, repeats and all."""
    ids, weight = call.arguments.values()
    # Every position asks for few rows, so that chains are long; what flows in is the looked-up table turned round.
    few = ids % min(FEW, weight.shape[0])
    dy = weight[ids].flip(0).nan_to_num() / 3
    found = call.gradients(dy, ids=few)["weight"]
    return difference(found, backward(dy, few, weight.shape[0], NONE), tolerance, words="gradient of the table")
