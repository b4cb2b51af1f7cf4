"""What the data's order and cutting must do: each sequence once an epoch, whatever the batch; each target once."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference


def once_an_epoch(call: Call, tolerance: Tolerance) -> str:
    """No sequence comes twice in an epoch, none is outside the data, and only what fills no batch is left out."""
    _, sequences, batch = call.arguments["plan"].tolist()
    for epoch, read in enumerate(call.output):
        if len(read) != sequences // batch * batch or len(read.unique()) != len(read):
            return f"epoch {epoch}: {len(read)} read, {len(read.unique())} different; allowed: each of {sequences} once"
        if not 0 <= int(read.min()) <= int(read.max()) < sequences:
            return f"epoch {epoch}: {int(read.min())} to {int(read.max())}; allowed: 0 to {sequences - 1}"
    return ""


def batch_is_not_seen(call: Call, tolerance: Tolerance) -> str:
    """In batches of one the same sequences come in the same order."""
    seed, sequences, _ = call.arguments["plan"].tolist()
    one = call.again(plan=torch.tensor([seed, sequences, 1]))[:, : call.output.shape[1]]
    return difference(call.output, one, tolerance, words="in batches of one")


def epochs_and_seeds_differ(call: Call, tolerance: Tolerance) -> str:
    """Another epoch and another seed have an order of their own, and the same seed has the same."""
    seed, *others = call.arguments["plan"].tolist()
    if torch.equal(call.output[0], call.output[1]):
        return "two epochs have the same order"
    if torch.equal(call.again(plan=torch.tensor([seed + 1, *others])), call.output):
        return f"seeds {seed} and {seed + 1} have the same order"
    return difference(call.again(), call.output, tolerance, words="the same seed again")


def as_counted(call: Call, tolerance: Tolerance) -> str:
    """Every target once, in its place, in the sequence that counting gives."""
    expected = call.reference(*call.arguments.values())
    if call.output.shape != expected.shape:
        return f"{len(call.output)} targets; allowed: {len(expected)}"
    return difference(call.output, expected, tolerance, words="sequence and place")
