"""How a checker drives `linear_cross_entropy` row by row: inputs, exact values and bounds, the resumed gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.ops.cross_entropy import linear_cross_entropy
from samebits.ops.cross_entropy.reference import cross_entropy64
from samebits.ops.logprob import check as logprob
from samebits.ops.logprob import selected_logprob_weight_gradient_


def cross_entropy_of_rows(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    reduction: Literal["mean", "sum", "none"] = "none",
    denominator: float | None = None,
) -> Tensor:
    """`linear_cross_entropy` with a loss for every row unless asked otherwise: the form that has rows to compare."""
    return linear_cross_entropy(hidden, weight, targets, reduction=reduction, denominator=denominator)


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    hidden, weight, targets = logprob.make_arguments(shape, recipe, format, seed).values()
    return {"hidden": hidden, "weight": weight, "targets": targets}


def _exact(arguments: Arguments, dloss: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    hidden, weight, targets = arguments.values()
    bounds = dict(logprob.exact({"hidden": hidden, "weight": weight, "ids": targets}, -dloss, error))
    bounds["output"] = Bounded(exact=cross_entropy64(hidden, weight, targets), allowed=bounds["output"].allowed)
    return bounds


def _resume(arguments: Arguments, dy: Tensor, sums: dict[str, Tensor] | None, backend: str) -> dict[str, Tensor]:
    hidden, weight, targets = arguments.values()
    sums = sums or {"weight": torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)}
    selected_logprob_weight_gradient_(sums["weight"], -dy, hidden, weight, targets, backend=backend)
    return sums


SPECS = {
    "cross_entropy": OperatorSpec(
        name="cross_entropy",
        row_arguments=("hidden", "targets"),
        shared_arguments=("weight",),
        shape_axes="MKV",
        make=_make,
        exact=_exact,
        launches=logprob.launches,
        without_gradient=("targets",),
        resume=_resume,
    )
}
