"""Rounding with feedback (GPTQ): a column of a weight is rounded once it has taken on what the columns before it lost.

The columns with the most in them come first. With moments H = (1 + U) D (1 + U)^T, U above the diagonal, the error of
the output is a sum of squares, one a column, and column k's is least if it is rounded from w_k + sum over i < k of
(w_i - q_i) U_ik. Scales are given. Elementwise, or our own product: no thread decides a bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from samebits import ops
from samebits.model.model import Model
from samebits.post.calibration import refuse_unless_finite
from samebits.post.grouped import Format, Grouped
from samebits.post.moments import second_moments

# Decide bits. What is added to the diagonal, as a share of its mean: channels that nothing flows through.
DAMPING: Final = 0.01
BLOCK: Final = 64
# A few tokens of any text have numbers there a thousand times as large as all others, and its moments are made of them.
SEARCHED: Final = ("down_proj.weight",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """How the columns of every weight that reads one input hand on what they lose."""

    order: Tensor
    """int64 (K): columns as they are rounded."""
    handed_on: Tensor
    """float32 (K, K), in that order: U, zero up to the diagonal."""
    importance: Tensor
    """float64 (K): the squares of each channel, for the search."""

    @classmethod
    def of(cls, moments: Tensor) -> Feedback:
        """`moments`: float64 (K, K)."""
        importance = moments.diagonal()
        order = torch.argsort(importance, descending=True, stable=True)
        mean = math.fsum(importance.tolist()) / len(importance)
        # Where nothing at all flows, nothing is handed on.
        damped = moments[order][:, order] + torch.eye(len(order), dtype=torch.float64) * (DAMPING * mean or 1.0)
        return cls(order=order, handed_on=_upper(damped).float(), importance=importance)


def feedback_of(model: Model, sequences: Sequence[Sequence[int]], tell: Callable[[int], None]) -> dict[str, Feedback]:
    """By weight, of those that are rounded so."""
    moments = second_moments(model, sequences, tell, leaving_out=SEARCHED)
    refuse_unless_finite(moments)
    made = {id(each): Feedback.of(each) for each in {id(each): each for each in moments.values()}.values()}
    return {name: made[id(each)] for name, each in moments.items()}


def _upper(rest: Tensor) -> Tensor:
    """U; the last column first, and what it explains is taken from all the others."""
    found = torch.zeros_like(rest)
    for column in range(len(rest) - 1, 0, -1):
        ratios = rest[:column, column] / rest[column, column]
        found[:column, column] = ratios
        rest[:column, :column] -= rest[:column, column, None] * ratios
    return found


def round_with_feedback(weight: Tensor, scaled: Grouped, feedback: Feedback) -> Grouped:
    """(N, K) in other codes of the scales that it has in `scaled`; rows do not depend on each other."""
    format = scaled.format
    # Columns are what is walked, so they lie side by side.
    plain_KN = weight.float().T[feedback.order].contiguous()
    fed_KN, codes_KN = plain_KN.clone(), torch.empty_like(plain_KN)
    groups = (feedback.order // format.group).tolist()
    scale_GN = scaled.scale.float().T.contiguous()
    minimum_GN = torch.zeros_like(scale_GN) if scaled.minimum is None else scaled.minimum.float().T.contiguous()
    width = len(groups)
    for start in range(0, width, BLOCK):
        end = min(start + BLOCK, width)
        for k in range(start, end):
            scale, minimum, ratios = scale_GN[groups[k]], minimum_GN[groups[k]], feedback.handed_on[k]
            codes_KN[k] = _code(fed_KN[k] - minimum, scale, format)
            fed_KN[k] = plain_KN[k] - (codes_KN[k] * scale + minimum)
            fed_KN[k + 1 : end] += ratios[k + 1 : end, None] * fed_KN[k]
        if end < width:
            fed_KN[end:] += ops.matmul(feedback.handed_on[start:end, end:].T.contiguous(), fed_KN[start:end])
    codes = torch.empty_like(codes_KN)
    codes[feedback.order] = codes_KN
    return Grouped(
        format=format,
        codes=codes.T.to(torch.int8).reshape(scaled.codes.shape),
        scale=scaled.scale,
        minimum=scaled.minimum,
    )


def _code(x: Tensor, scale: Tensor, format: Format) -> Tensor:
    """The nearest; of a group without a scale 0."""
    return torch.where(scale == 0, 0.0, torch.round(x / scale)).clamp(format.least, format.most)
