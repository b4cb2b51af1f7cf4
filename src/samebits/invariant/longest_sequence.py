"""Rotations of transformers whose frequencies follow the longest sequence of a batch: known once they have moved.

Knows no mode. `longrope` takes other frequencies for all sequences as soon as one of them is long, `dynamic` grows
them."""

from __future__ import annotations

import torch
from torch import nn

from samebits.invariant.compound import unseen

WHY = (
    "{module} has rope_type {kind!r} and saw a sequence longer than original_max_position_embeddings: it then rotates"
    " every sequence of the batch otherwise, and what a cache holds no longer fits; allowed: sequences up to that"
    " length, or a rope_type that does not follow them (linear, yarn, llama3)"
)


def reason_of_rotation(module: nn.Module) -> str | None:
    """Why what this module has just computed depends on the other sequences of its batch, or None."""
    kinds = module.__dict__.get("rope_type")
    if kinds is None:
        return None
    for layers, kind in kinds.items() if isinstance(kinds, dict) else [("", kinds)]:
        follows = isinstance(kind, str) and ("dynamic" in kind or kind == "longrope")
        if follows and _moved(module, f"{layers}_" if layers else ""):
            return WHY.format(module=type(module).__name__, kind=kind)
    return None


def _moved(module: nn.Module, prefix: str) -> bool:
    now, first = (getattr(module, f"{prefix}{name}", None) for name in ("inv_freq", "original_inv_freq"))
    if now is None or first is None:
        return False
    with unseen(now, first):
        return not torch.equal(now, first.to(now))
