"""An update in two passes over memory beside operators one after another on the CPU, wherever the former can run."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tests.train.test_lane_sums import SHAPES, filled
from torch import Tensor

from samebits.numerics.bits import compare
from samebits.ops.adamw import AdamW
from samebits.ops.grad_norm import grad_norm
from samebits.train.trainer import clipped
from samebits.train.triton_sums import LaneSums
from samebits.train.triton_update import PieceUpdate
from samebits.train.updating import OneByOne, Update

CPU = torch.device("cpu")
CASES = (
    ("around a piece", None, 0.5),
    ("around a piece", torch.float16, 1e6),
    ("an empty one between", torch.bfloat16, 0.5),
    ("empty at the end", torch.float32, 1.0),
    ("one element", None, 1.0),
)
"""Shapes, what passes round to, and the norm that is allowed: clipped and not."""


def drawn(shapes: Mapping[str, tuple[int, ...]], seed: int, device: torch.device) -> dict[str, Tensor]:
    made_by = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=made_by).to(device) for name, shape in shapes.items()}


def optimizer_of(weights: dict[str, Tensor]) -> AdamW:
    """Two groups with other numbers, on its third update; moments as they could be."""
    groups = [[each for each in weights.values() if each.numel() and (each.dim() > 1) == matrix] for matrix in (1, 0)]
    numbers = ({"lr": 1e-2, "weight_decay": 0.1}, {"lr": 1e-3, "weight_decay": 0.0})
    found = AdamW([{"params": some, **each} for some, each in zip(groups, numbers, strict=True)], betas=(0.9, 0.95))
    shapes, device = {name: tuple(each.shape) for name, each in weights.items()}, next(iter(weights.values())).device
    first, second = (drawn(shapes, seed, device) for seed in (7, 8))
    for name, weight in weights.items():
        found.state[weight] = {"step": 2, "exp_avg": first[name], "exp_avg_sq": second[name].square()}
    return found


def outcome(update: Update, weights: dict[str, Tensor], optimizer: AdamW, max_norm: float) -> dict[str, Tensor]:
    """Everything that is watched and written."""
    norm, magnitudes = update.seen()
    seen = {"norm": norm.clone(), "magnitudes": magnitudes}
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    shorter, largest = update.made(norm, max_norm)
    seen |= {"norms after": shorter, "largest": largest}
    kept = [name for name, weight in weights.items() if weight.numel()]
    seen["steps"] = torch.tensor([optimizer.state[weights[name]]["step"] for name in kept], dtype=torch.float32)
    states = {
        f"{kind} {name}": optimizer.state[weights[name]][kind] for name in kept for kind in ("exp_avg", "exp_avg_sq")
    }
    return {**seen, **weights, **states}


def norms(gradients: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return grad_norm(gradients.values()), grad_norm([gradients[name]])


def state_of(
    shapes: str, bad: bool, device: torch.device
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor], AdamW]:
    """All gradients as one, each by itself, weights and their optimizer; `bad`: a gradient with a NaN."""
    here, sums = filled(SHAPES[shapes], True, 1), LaneSums(SHAPES[shapes], True, device)
    for name, part in sums.parts.items():
        part.copy_(here.parts[name])
    if bad:
        next(iter(sums.parts.values())).view(-1)[0] = torch.nan
    gradients, weights = sums.gradients(), drawn(SHAPES[shapes], 5, device)
    whole = sums.whole(gradients)
    assert whole is not None
    return whole, gradients, weights, optimizer_of(weights)


def both(
    shapes: str, kind: torch.dtype | None, max_norm: float, *, bad: bool, device: torch.device
) -> dict[str, str | None]:
    """By what is watched and written, the first difference or None."""

    def rounded(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {} if kind is None else {name: each.to(kind) for name, each in weights.items()}

    whole, gradients, weights, optimizer = state_of(shapes, bad, device)
    roundings = rounded(weights) or None
    found = outcome(PieceUpdate(whole, gradients, weights, roundings, optimizer), weights, optimizer, max_norm)
    roundings_found = roundings or {}
    whole, gradients, weights, optimizer = state_of(shapes, bad, CPU)
    by_operators = OneByOne(gradients, weights, optimizer, clipped, norms, [whole])
    wanted = outcome(by_operators, weights, optimizer, max_norm)
    found |= {f"rounding of {name}": each for name, each in roundings_found.items()}
    wanted |= {f"rounding of {name}": each for name, each in rounded(weights).items()}
    wrong = {name: compare(found[name].cpu(), each) for name, each in wanted.items()}
    case = f"{shapes}, {kind}, {max_norm}, {bad}"
    return {f"{case}: {name}": None if each is None else str(each) for name, each in wrong.items()}
