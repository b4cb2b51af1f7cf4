"""The optimizer's buffers as the first step finds them, while fresh memory holds NaN instead of whatever lies there.

Knows no kernel's allocator: torch fills what it hands out uninitialised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from samebits.ops.adamw import AdamW


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Within the block uninitialised tensors are NaN, which torch's deterministic algorithms see to."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)


def first_moments(param: Tensor, *, fresh: Callable[[Tensor], dict[str, Any]] | None = None) -> Tensor:
    """(rows, 2 width): both moments of every row's parameter after a first step without gradient.

    Such a step leaves zeros as they are. `fresh` makes a state in the optimizer's place, for planted faults."""
    with poisoned_memory():
        parameters = [row.detach().clone() for row in param]
        optimizer = AdamW(parameters, weight_decay=0.0)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
            if fresh is not None:
                optimizer.state[parameter] = fresh(parameter)
        optimizer.step()
    states = [optimizer.state[parameter] for parameter in parameters]
    return torch.stack([torch.cat([state["exp_avg"], state["exp_avg_sq"]]) for state in states])
