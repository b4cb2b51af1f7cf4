"""AdamW from a table of configurations, a row each: what it does at every step shows which numbers it applies.

Knows no schedule; the rate of every step is a column of the table, as a schedule would have written it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.ops.adamw import AdamW

# Columns of a configuration; after them the learning rate of each step.
COLUMNS = ("beta1", "beta2", "eps", "weight_decay")


def applied(config: Tensor, param: Tensor, grads: Tensor, **options: Any) -> Tensor:
    """(rows, steps, 3, width): parameter, first and second moment of every row after each step.

    Each row is a parameter group with the numbers of its own configuration; `options` go to the constructor."""
    parameters = [row.detach().clone() for row in param]
    rows = config.tolist()
    groups = [_group(parameter, row) for parameter, row in zip(parameters, rows, strict=True)]
    optimizer = AdamW(groups, **options)
    seen = []
    for step in range(grads.shape[1]):
        for group, row in zip(optimizer.param_groups, rows, strict=True):
            group["lr"] = row[len(COLUMNS) + step]
        seen.append(stepped(optimizer, parameters, grads[:, step]))
    return torch.stack(seen, 1)


def stepped(optimizer: AdamW, parameters: list[Tensor], grads: Tensor) -> Tensor:
    """One step; what it left behind, (rows, 3, width)."""
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
    optimizer.step()
    moments = [optimizer.state[parameter] for parameter in parameters]
    return torch.stack(
        [
            torch.stack([parameter, state["exp_avg"], state["exp_avg_sq"]])
            for parameter, state in zip(parameters, moments, strict=True)
        ]
    )


def _group(parameter: Tensor, row: list[float]) -> dict[str, Any]:
    beta1, beta2, eps, weight_decay = row[: len(COLUMNS)]
    return {"params": [parameter], "betas": (beta1, beta2), "eps": eps, "weight_decay": weight_decay}
