"""The stability contracts, watched at every step of a run: what is broken stops it in one line.

Knows tensors and numbers by name, no model and no data. Ids are those of the training contracts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from samebits.ops.grad_norm.reference import LANES, PIECE
from samebits.ops.rounding import FLOAT32_ROUNDOFF

STABLE: Final = "C-TRAINSTABLE-001"
EMBEDDING_GRADIENT: Final = "C-EMBED-GRAD-001"
HYPERPARAMETERS: Final = "C-HYPERPARAMS-001"
FLOW: Final = "C-GRADFLOW-001"
ZEROS: Final = "C-GPUINIT-001"
COUNTED: Final = "C-TRAINCFG-001"
COPIES: Final = "DIST-001"
READ_BACK: Final = ("lr", "betas", "eps", "weight_decay")


Over = Callable[[Sequence[int]], list[int]]
"""Counts of this rank to counts of all ranks together."""


class BreachError(RuntimeError):
    """A contract that a run broke: its id, the step and what was seen, in one line.

    `about`: the weight, the moment or the setting that it is about, where it is one."""

    def __init__(self, contract: str, step: int, message: str, about: str = "") -> None:
        super().__init__(f"{contract}: step {step}: {message}")
        self.contract, self.step, self.message, self.about = contract, step, message, about


def loss_is_finite(step: int, loss: float) -> None:
    if not math.isfinite(loss):
        raise BreachError(STABLE, step, f"the loss is {loss}; allowed: finite")


def largest(tensors: Mapping[str, Tensor]) -> Tensor:
    """The largest magnitude in each, NaN where one is; 0 where all are zero, or none. Asked for, and not waited for."""
    kept = [tensor for tensor in tensors.values() if tensor.numel()]
    found = iter(_largest_of(kept) if kept else [])
    return torch.stack([next(found) if tensor.numel() else tensor.new_zeros(()) for tensor in tensors.values()])


def _largest_of(tensors: list[Tensor]) -> Sequence[Tensor]:
    """Some launches for all of them on a GPU; on the CPU one call each is three times faster than torch's norm."""
    if tensors[0].is_cuda:
        return torch._foreach_norm(tensors, math.inf)
    return torch.stack([torch.stack(torch.aminmax(tensor)) for tensor in tensors]).abs().amax(dim=1).unbind()


def are_finite(step: int, what: str, tensors: Mapping[str, Tensor], magnitudes: Tensor, over: Over = list) -> None:
    """Every element of every tensor, of which `magnitudes` are the largest. `over` sums counts over ranks."""
    _all_zero(step, what, dict(zip(tensors, over(_not_finite(tensors, magnitudes.tolist())), strict=True)))


def _all_zero(step: int, what: str, not_finite: Mapping[str, int]) -> None:
    for name, bad in not_finite.items():
        if bad:
            message = f"{what} {name} has {bad} elements that are not finite; allowed: none"
            raise BreachError(STABLE, step, message, name)


def _not_finite(tensors: Mapping[str, Tensor], magnitudes: Sequence[float]) -> list[int]:
    """Elements of each tensor. The largest shows whether there are any."""
    return [
        0 if math.isfinite(magnitude) else int((~tensor.isfinite()).sum())
        for tensor, magnitude in zip(tensors.values(), magnitudes, strict=True)
    ]


def norm_error(shapes: Iterable[tuple[int, ...]]) -> float:
    """How far the norm after clipping may lie above the largest allowed, relatively: derived from the order of its sum.

    A square passes a lane of a piece, the fold of the lanes, a lane over pieces and their fold; the root halves the
    sum's error, which counts twice: in the norm that scaled and in the norm that is looked at. Then the two roots, the
    sum with 1e-6, the quotient and the product."""
    pieces = sum(-(-math.prod(shape) // PIECE) for shape in shapes)
    folds = 2 * (LANES.bit_length() - 1)
    roundings = PIECE // LANES + -(-pieces // LANES) + folds + 6
    return 1.01 * roundings * FLOAT32_ROUNDOFF


def norm_is_clipped(step: int, contract: str, what: str, norm: float, max_norm: float, error: float) -> None:
    """A NaN is above every bound."""
    most = max_norm * (1 + error)
    if not norm <= most:
        raise BreachError(contract, step, f"the norm of {what} after clipping is {norm}; allowed: at most {most}")


def clipping_is_by_the_norm(step: int, before: float, after: float, max_norm: float, error: float) -> None:
    """What was too long is now as long as allowed, what was not keeps its norm: no other power, no other bound."""
    wanted = min(before, max_norm)
    # 1e-6 is added to the norm before it divides.
    slack = wanted * (error + 1e-6 / max(before, 1e-6))
    if not abs(after - wanted) <= slack:
        raise BreachError(
            STABLE, step, f"the norm is {before} before clipping and {after} after; allowed: {wanted} after"
        )


def without_gradient(step: int, gradients: Mapping[str, Tensor], largest: Tensor, over: Over = list) -> list[str]:
    """The weights that no gradient reached. A breach where an element of one is not finite: one exchange tells both."""
    magnitudes = largest.tolist()
    counts = over([*(int(each != 0) for each in magnitudes), *_not_finite(gradients, magnitudes)])
    _all_zero(step, "the gradient of", dict(zip(gradients, counts[len(gradients) :], strict=True)))
    return [name for name, count in zip(gradients, counts, strict=False) if not count]


def gradients_flow(step: int, missing: list[str]) -> None:
    """At the first step every weight has a gradient."""
    if step == 1 and missing:
        message = f"{missing[0]} has no gradient, {len(missing)} weights in all; allowed: none"
        raise BreachError(FLOW, step, message, missing[0])


def moments_are_zero(moments: Mapping[str, Tensor]) -> None:
    """Before the first step: bits of zero, by measurement."""
    for name, tensor in moments.items():
        if bool(tensor.view(torch.int32).any()):
            message = f"{name} is not zero before the first step; allowed: +0 in every element"
            raise BreachError(ZEROS, 0, message, name)


def hyperparameters_reach(step: int, groups: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """The numbers in the optimizer are those of the configuration, each of every group."""
    if len(groups) != len(wanted):
        raise BreachError(HYPERPARAMETERS, step, f"the optimizer has {len(groups)} groups; allowed: {len(wanted)}")
    for number, (group, numbers) in enumerate(zip(groups, wanted, strict=True)):
        for name in READ_BACK:
            if group[name] != numbers[name]:
                message = f"{name} of group {number} is {group[name]}, the configuration says {numbers[name]}"
                raise BreachError(HYPERPARAMETERS, step, message, f"optimizer.{name}")


def copies_are_equal(step: int, digests: Mapping[str, Sequence[int]]) -> None:
    """Ranks that hold the same part of the weights hold the same bits; `digests` by what it is, one a rank."""
    for what, found in digests.items():
        for place, digest in enumerate(found):
            if digest != found[0]:
                message = f"{what}: those of place {place} are {digest:014x}, those of place 0 {found[0]:014x}"
                raise BreachError(COPIES, step, f"{message}; allowed: the same bits")


def updates_are_counted(step: int, counted: Mapping[str, int]) -> None:
    """The optimizer made as many updates of each weight as the run has steps."""
    for name, updates in counted.items():
        if updates != step:
            raise BreachError(COUNTED, step, f"{name} had {updates} updates; allowed: {step}")
