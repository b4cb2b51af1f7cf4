"""What a store should give back: what was put into it."""

from __future__ import annotations

from torch import Tensor


def as_they_were(logits_SRV: Tensor) -> Tensor:
    return logits_SRV.double()
